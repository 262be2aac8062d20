// Runs all tests, or those whose file or name contains one of the arguments. With --quiet says little of those that
// pass. Exits with 1 if one failed.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>

#include "check.hpp"

namespace rdzv::test {

namespace {

constexpr unsigned kSecondsPerTest = 100;  // a test that takes longer hangs

std::mutex mutex;
std::atomic<int> failures{0};
const char* running = "";

void hangs(int) {
  const auto say = [](const char* text) {
    [[maybe_unused]] const auto written = write(STDERR_FILENO, text, std::strlen(text));
  };
  say("FAILED (hangs): ");
  say(running);
  say("\n");
  abort();  // whoever wants to know where gets a core
}

std::string place(const Case& test) {
  const char* const slash = std::strrchr(test.file, '/');
  return std::string(slash != nullptr ? slash + 1 : test.file) + ":" + test.name;
}

bool wanted(const std::string& place, const std::vector<std::string>& patterns) {
  return patterns.empty() || std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
           return place.find(pattern) != std::string::npos;
         });
}

void run(const Case& test) {
  try {
    test.run();
  } catch (const Ended&) {
  } catch (const std::exception& error) {
    fail(test.file, 0, std::string("exception: ") + error.what());
  }
}

}  // namespace

std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

void fail(const char* file, int line, const std::string& what) {
  const std::lock_guard lock(mutex);
  ++failures;
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

std::string shown(const std::string& bytes) {
  constexpr std::size_t kMost = 400;
  std::string text;
  for (const char c : bytes.substr(0, kMost)) {
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, c >= ' ' && c <= '~' ? "%c" : "\\x%02x", static_cast<unsigned char>(c));
    text += escaped;
  }
  return '"' + text + '"' + (bytes.size() > kMost ? "... (" + std::to_string(bytes.size()) + " bytes)" : "");
}

}  // namespace rdzv::test

int main(int count, char** arguments) {
  using namespace rdzv::test;
  std::vector<std::string> patterns(arguments + 1, arguments + count);
  const bool quiet = std::erase(patterns, "--quiet") > 0;
  using Clock = std::chrono::steady_clock;
  const auto ms_since = [](Clock::time_point begin) {
    return static_cast<long long>(std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin).count());
  };
  signal(SIGALRM, hangs);
  int ran = 0, failed = 0;
  const auto all_begin = Clock::now();
  for (const Case& test : cases()) {
    const std::string name = place(test);
    if (!wanted(name, patterns)) {
      continue;
    }
    running = name.c_str();
    const int before = failures;
    const auto begin = Clock::now();
    alarm(kSecondsPerTest);
    run(test);
    alarm(0);
    ++ran;
    const bool bad = failures != before;
    failed += bad ? 1 : 0;
    if (bad || !quiet) {
      std::printf("%-6s %6lld ms  %s\n", bad ? "FAILED" : "ok", ms_since(begin), name.c_str());
      std::fflush(stdout);
    }
  }
  std::printf("%d tests, %d failed, %lld ms\n", ran, failed, ms_since(all_begin));
  return failed > 0 || ran == 0 ? 1 : 0;
}
