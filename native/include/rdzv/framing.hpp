// Our own framing. See PROTOCOL.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace rdzv {

inline constexpr unsigned char kFramingOpcode = 0xF7;
inline constexpr std::string_view kFramingMagic = "RDZV";
inline constexpr std::uint32_t kFramingVersion = 1;
inline constexpr std::uint32_t kMaxFrame = 16 * 1024 * 1024;

enum class Operation : std::uint8_t {
  kStatistics = 1,
  kEnter = 2,
  kOpen = 3,
  kPut = 4,
  kList = 5,
  kWatch = 6,
  kUnwatch = 7,
  kDelete = 8,
  kKeepAlive = 9,
};

// The operations of coordination, as the statistics name them.
inline constexpr Operation kFirstCoordination = Operation::kOpen;
inline constexpr std::array<std::string_view, 7> kCoordination{"open_session", "put",    "list",      "watch",
                                                               "unwatch",      "delete", "keep_alive"};
// Its place there; at least the size if it is none of them.
constexpr std::size_t coordination_index(Operation operation) {
  return static_cast<std::size_t>(operation) - static_cast<std::size_t>(kFirstCoordination);
}

enum class FrameStatus : std::uint8_t { kOk = 0, kError = 1, kPush = 2, kOtherRun = 3, kCompacted = 4 };

// A session may stay silent for so long, its client says for how long.
inline constexpr std::uint32_t kMinTtlMs = 100, kMaxTtlMs = 3'600'000;

}  // namespace rdzv
