// Runs the fuzzer without libFuzzer, under any compiler:
//   rdzv_fuzz [--seconds N] [--seed N] [--save DIR]   makes inputs until the time is over
//   rdzv_fuzz FILE...                                 runs saved ones again
// The first input that fails is made smaller, printed as hexadecimal text, and saved; the exit code is 1.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>

#include "coverage.hpp"
#include "generate.hpp"
#include "target.hpp"

// Memory that was freed is kept from being used again, but not so much of it that every allocation is a page fault.
extern "C" const char* __asan_default_options() { return "quarantine_size_mb=16"; }
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

using rdzv::fuzz::Generator;
namespace coverage = rdzv::fuzz::coverage;

constexpr unsigned kSecondsPerInput = 60;
constexpr std::size_t kMaxCorpus = 3000;
constexpr std::size_t kMaxInput = 100'000;

struct Options {
  double seconds = 10;
  std::uint64_t seed = std::random_device()();
  std::string save = ".";
  std::vector<std::string> files;
};

Options options;
std::string current;  // what is being run

void save(const std::string& input) {
  std::uint64_t name = 14695981039346656037u;  // FNV-1a of its bytes
  for (const char byte : input) {
    name = (name ^ static_cast<unsigned char>(byte)) * 1099511628211u;
  }
  char file[32];
  std::snprintf(file, sizeof file, "/crash-%016llx", static_cast<unsigned long long>(name));
  mkdir(options.save.c_str(), 0777);
  std::ofstream(options.save + file, std::ios::binary) << input;
  std::fprintf(stderr, "seed %llu, input of %zu bytes, saved as %s%s, again with: rdzv_fuzz FILE\n",
               static_cast<unsigned long long>(options.seed), input.size(), options.save.c_str(), file);
  for (const char byte : input.substr(0, 4000)) {
    std::fprintf(stderr, "%02x", static_cast<unsigned char>(byte));
  }
  std::fprintf(stderr, "\n");
}

// The sanitizers end the process; abort() and alarms come here too.
void died() { save(current); }
void on_signal(int number) {
  std::fprintf(stderr, number == SIGALRM ? "an input takes too long\n" : "aborted\n");
  died();
  _exit(1);
}

// What is wrong, or nothing.
std::string verdict(const std::string& input) {
  current = input;
  alarm(kSecondsPerInput);
  try {
    rdzv::fuzz::run(input);
  } catch (const std::runtime_error& wrong) {
    return wrong.what();
  }
  return "";
}

// Leaves out what the failure does not need: events, then parts of what is said.
std::string smaller(std::string input) {
  for (bool shrunk = true; shrunk;) {
    shrunk = false;
    const auto attempt = [&](const rdzv::fuzz::Program& program) {
      std::string candidate = encode(program);
      if (candidate.size() < input.size() && !verdict(candidate).empty()) {
        input = std::move(candidate);
        shrunk = true;
      }
      return shrunk;
    };
    const auto program = rdzv::fuzz::decode(input);
    for (std::size_t i = 0; i < program.events.size() && !shrunk; ++i) {
      auto less = program;
      less.events.erase(less.events.begin() + static_cast<std::ptrdiff_t>(i));
      if (attempt(less)) {
        break;
      }
      for (std::size_t size = program.events[i].bytes.size(); size > 0 && !shrunk; size /= 2) {
        for (std::size_t at = 0; at < program.events[i].bytes.size() && !shrunk; at += size) {
          less = program;
          less.events[i].bytes.erase(at, size);
          attempt(less);
        }
      }
    }
  }
  return input;
}

int report(const std::string& input, const std::string& wrong) {
  std::fprintf(stderr, "FAILED: %s\n", wrong.c_str());
  save(smaller(input));
  return 1;
}

int replay() {
  for (const std::string& file : options.files) {
    std::ifstream stream(file, std::ios::binary);
    if (!stream) {
      std::fprintf(stderr, "rdzv_fuzz: cannot read %s\n", file.c_str());
      return 2;
    }
    const std::string input((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    if (const std::string wrong = verdict(input); !wrong.empty()) {
      return report(input, wrong);
    }
    std::printf("ok %s\n", file.c_str());
  }
  return 0;
}

int fuzz() {
  using Clock = std::chrono::steady_clock;
  std::printf("fuzzing for %g s, seed %llu\n", options.seconds, static_cast<unsigned long long>(options.seed));
  std::fflush(stdout);
  Generator generator(options.seed);
  std::vector<std::string> corpus = generator.seeds();
  const std::size_t seeds = corpus.size();
  const auto end = Clock::now() + std::chrono::duration<double>(options.seconds);
  std::uint64_t runs = 0;
  for (; runs < seeds || Clock::now() < end; ++runs) {
    const std::string input = runs < seeds    ? corpus[runs]
                              : runs % 3 == 0 ? generator.fresh()
                                              : generator.mutated(corpus);
    coverage::begin();
    if (const std::string wrong = verdict(input); !wrong.empty()) {
      return report(input, wrong);
    }
    if (coverage::gain() > 0 && runs >= seeds && input.size() <= kMaxInput) {
      if (corpus.size() < kMaxCorpus) {
        corpus.push_back(input);
      } else {
        corpus[seeds + runs % (kMaxCorpus - seeds)] = input;
      }
    }
  }
  std::printf("%llu inputs, %zu of them interesting, %zu places reached, nothing found\n",
              static_cast<unsigned long long>(runs), corpus.size(), coverage::total());
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    const char* const value = i + 1 < count ? arguments[i + 1] : "";
    if (name == "--seconds") {
      options.seconds = std::atof(value);
    } else if (name == "--seed") {
      options.seed = std::strtoull(value, nullptr, 10);
    } else if (name == "--save") {
      options.save = value;
    } else if (name.starts_with("--")) {
      std::fprintf(stderr, "usage: rdzv_fuzz [--seconds N] [--seed N] [--save DIR] [FILE...]\n");
      return 2;
    } else {
      options.files.push_back(name);
      continue;
    }
    ++i;
  }
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(died);
  }
  signal(SIGABRT, on_signal);
  signal(SIGALRM, on_signal);
  return options.files.empty() ? fuzz() : replay();
}
