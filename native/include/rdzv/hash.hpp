// Hashes keys: 16 bytes a step, each folded with a 64x64 to 128 bit multiplication, from a seed that is drawn when the
// process starts, so that nobody can send keys that all meet in one bucket. Same family as wyhash and umash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string_view>

namespace rdzv {

class KeyHasher {
 public:
  static std::size_t hash(std::string_view key) {
    const char* next = key.data();
    std::size_t left = key.size();
    std::uint64_t state = seed().a;
    for (; left > 16; next += 16, left -= 16) {
      state = fold(load(next) ^ seed().b, load(next + 8) ^ state);
    }
    std::uint64_t low = 0, high = 0;
    if (left >= 8) {  // two words that may overlap
      low = load(next);
      high = load(next + left - 8);
    } else if (left >= 4) {
      low = load32(next);
      high = load32(next + left - 4);
    } else if (left > 0) {
      low = static_cast<unsigned char>(next[0]);
      high = static_cast<std::uint64_t>(static_cast<unsigned char>(next[left / 2])) << 8 |
             static_cast<unsigned char>(next[left - 1]);
    }
    return fold(fold(low ^ seed().b, high ^ state), seed().c ^ key.size());
  }

 private:
  struct Seed {
    std::uint64_t a, b, c;
  };

  static Seed draw() {
    std::random_device device;
    const auto word = [&] { return static_cast<std::uint64_t>(device()) << 32 | device(); };
    return {word() | 1, word() | 1, word() | 1};  // odd: a product with an even number loses bits
  }
  static const Seed& seed() { return seed_; }

  static inline const Seed seed_ = draw();

  static std::uint64_t load(const char* from) {
    std::uint64_t word;
    std::memcpy(&word, from, sizeof word);
    return word;
  }
  static std::uint64_t load32(const char* from) {
    std::uint32_t word;
    std::memcpy(&word, from, sizeof word);
    return word;
  }
  static std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }
};

}  // namespace rdzv
