// Our own framing. See PROTOCOL.md.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "rdzv/output.hpp"
#include "rdzv/payload.hpp"

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
  kAttach = 10,
  kForward = 11,
  kFollow = 12,
  kUnfollow = 13,
  kArrive = 14,
  kGiveBack = 15,
  kRecalled = 16,
  kReceived = 17,
  kReport = 18,
  kLeave = 19,
};

// The operations of coordination, as the statistics name them.
inline constexpr Operation kFirstCoordination = Operation::kOpen;
inline constexpr std::array<std::string_view, 7> kCoordination{"open_session", "put",    "list",      "watch",
                                                               "unwatch",      "delete", "keep_alive"};
// Its place there; at least the size if it is none of them.
constexpr std::size_t coordination_index(Operation operation) {
  return static_cast<std::size_t>(operation) - static_cast<std::size_t>(kFirstCoordination);
}

// The operations of a trunk, as the statistics name them.
inline constexpr Operation kFirstOfTrunk = Operation::kAttach;
inline constexpr std::array<std::string_view, 10> kTrunkNames{"attach",    "forward",  "follow",   "unfollow", "arrive",
                                                        "give_back", "recalled", "received", "report", "leave"};
constexpr std::size_t trunk_index(Operation operation) {
  return static_cast<std::size_t>(operation) - static_cast<std::size_t>(kFirstOfTrunk);
}
// Those that are counted, kept until they are acknowledged, and sent again after a break.
constexpr bool is_counted(Operation operation) {
  return operation >= Operation::kForward && operation <= Operation::kRecalled;
}

enum class FrameStatus : std::uint8_t { 
  kOk = 0,
  kError = 1,
  kPush = 2,
  kOtherRun = 3,
  kCompacted = 4,
  // Of a trunk. All but the last are counted, as replies are.
  kValue = 5,     // of a follow: the value, which has ended it
  kPresent = 6,   // of a follow: the key is there, which has ended it
  kWoken = 7,     // of a follow: a queue push has woken one of those who wait; the follow goes on
  kRecall = 8,    // give up the value of a key
  kQueued = 10,   // of a follow: its key is a queue
  kReceived = 9,  // how many counted frames have come so far
  kForeignRun = 11,  // only of open: the run belongs to another token
};

// A session may stay silent for so long, its client says for how long.
inline constexpr std::uint32_t kMinTtlMs = 100, kMaxTtlMs = 3'600'000;

// For how long a proxy uses what it holds after it has sent a sign of life that its root has answered. Half of its grace,
// but not longer than this: so long may a proxy that has gone make a write wait, and the grace is what it likes.
inline constexpr std::int64_t kMostHoldMs = 10'000;
constexpr std::int64_t hold_ms(std::int64_t grace_ms) { return std::min(grace_ms / 2, kMostHoldMs); }

// How frames are answered. Internal to the protocols that have them.
// Of a frame: its length, which does not count itself, and the id and the operation behind that.
inline constexpr std::size_t kLengthSize = 4, kHeadSize = 5;

inline void answer(Output& reply, std::uint32_t id, FrameStatus status, std::string_view payload) {
  reply.number(static_cast<std::uint32_t>(kHeadSize + payload.size()));
  reply.number(id);
  reply.number(static_cast<std::uint8_t>(status));
  reply.raw(payload);
}

// How the frames of a trunk are laid out. Internal to both of its ends.
// Flags of attach, and of follow.
inline constexpr std::uint8_t kLeaf = 1, kAgain = 2;
inline constexpr std::uint8_t kReads = 1, kAhead = 2;

// `kind`: the operation, or the status of what is said to the proxy.
inline std::string make_frame(std::uint32_t id, std::uint8_t kind, std::string_view payload) {
  std::string frame;
  frame.reserve(4 + 4 + 1 + payload.size());
  add_number(frame, static_cast<std::uint32_t>(4 + 1 + payload.size()));
  add_number(frame, id);
  add_number(frame, kind);
  frame.append(payload);
  return frame;
}

}  // namespace rdzv
