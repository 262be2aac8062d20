// Random numbers that are the same in every run with the same seed, on every machine.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace rdzv::test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {  // splitmix64
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // From 0 to `limit` - 1.
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(next() % limit); }
  bool one_in(std::size_t count) { return below(count) == 0; }

  template <class Value>
  const Value& pick(const std::vector<Value>& values) {
    return values[below(values.size())];
  }
  template <class Value>
  Value pick(std::initializer_list<Value> values) {
    return values.begin()[below(values.size())];
  }
  std::string bytes(std::size_t size) {
    std::string made(size, '\0');
    for (char& c : made) {
      c = static_cast<char>(next());
    }
    return made;
  }

 private:
  std::uint64_t state_;
};

}  // namespace rdzv::test
