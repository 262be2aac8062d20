// A test harness of our own, because no C++ test library comes from PyPI: TEST(name) { CHECK(...); REQUIRE(...); }
#pragma once

#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace rdzv::test {

struct Case {
  const char* name;
  const char* file;
  void (*run)();
};

std::vector<Case>& cases();

struct Registered {
  Registered(const char* name, const char* file, void (*run)()) { cases().push_back({name, file, run}); }
};

// Thread-safe.
void fail(const char* file, int line, const std::string& what);

// Thrown by REQUIRE: ends the test. Not to be thrown on a thread of the test's own; see threads.hpp.
struct Ended {};

template <class Value>
std::string shown(const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    return std::to_string(static_cast<long long>(value));
  } else {
    std::ostringstream text;
    text << value;
    return text.str();
  }
}

// Bytes that do not print are shown as \xNN.
std::string shown(const std::string& bytes);

template <class A, class B>
bool equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) {
    return true;
  }
  fail(file, line, std::string(text) + "\n    left:  " + shown(a) + "\n    right: " + shown(b));
  return false;
}

}  // namespace rdzv::test

#define TEST(name)                                                                        \
  static void test_##name();                                                              \
  static const ::rdzv::test::Registered registered_##name(#name, __FILE__, &test_##name); \
  static void test_##name()

// Go on after a failure:
#define CHECK(condition) ((condition) ? void() : ::rdzv::test::fail(__FILE__, __LINE__, #condition))
#define CHECK_EQUAL(a, b) static_cast<void>(::rdzv::test::equal((a), (b), #a " == " #b, __FILE__, __LINE__))
// End the test:
#define REQUIRE(condition)                                \
  do {                                                    \
    if (!(condition)) {                                   \
      ::rdzv::test::fail(__FILE__, __LINE__, #condition); \
      throw ::rdzv::test::Ended();                        \
    }                                                     \
  } while (false)
#define REQUIRE_EQUAL(a, b)                                                 \
  do {                                                                      \
    if (!::rdzv::test::equal((a), (b), #a " == " #b, __FILE__, __LINE__)) { \
      throw ::rdzv::test::Ended();                                          \
    }                                                                       \
  } while (false)
