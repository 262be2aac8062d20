// Coordination on the wire, written out by hand, and what comes back as text that is easy to compare.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "requests.hpp"

namespace rdzv::test::wire {

constexpr std::uint8_t kOpen = 3, kPut = 4, kList = 5, kWatch = 6, kUnwatch = 7, kDelete = 8, kKeepAlive = 9, kAttach = 10;
constexpr std::uint8_t kDone = 0, kRefused = 1, kPush = 2, kOtherRun = 3, kCompacted = 4;
constexpr std::uint8_t kEphemeral = 1, kGuarded = 2;

inline std::string u32(std::size_t number) { return raw(static_cast<std::uint32_t>(number)); }
inline std::string str(std::string_view bytes) { return u32(bytes.size()) + std::string(bytes); }
inline std::string strs(const Texts& all) {
  std::string bytes;
  for (const std::string& each : all) {
    bytes += str(each);
  }
  return bytes;
}

inline std::string open(std::uint32_t id, std::uint32_t ttl_ms, std::string_view run) {
  return frame(id, kOpen, u32(ttl_ms) + str(run));
}
// Keys and values in turn.
inline std::string put(std::uint32_t id, const Texts& pairs, std::uint8_t flags = 0) {
  return frame(id, kPut, raw(flags) + u32(pairs.size() / 2) + strs(pairs));
}
inline std::string put_if(std::uint32_t id, std::string_view guard, std::uint64_t revision, const Texts& pairs,
                          std::uint8_t flags = 0) {
  return frame(id, kPut,
               raw(static_cast<std::uint8_t>(flags | kGuarded)) + str(guard) + u64(revision) + u32(pairs.size() / 2) +
                   strs(pairs));
}
inline std::string list(std::uint32_t id, std::string_view prefix) { return frame(id, kList, str(prefix)); }
inline std::string watch(std::uint32_t id, std::uint32_t number, std::string_view prefix, std::uint64_t after = 0) {
  return frame(id, kWatch, u32(number) + str(prefix) + u64(after));
}
inline std::string unwatch(std::uint32_t id, std::uint32_t number) { return frame(id, kUnwatch, u32(number)); }
inline std::string remove(std::uint32_t id, const Texts& keys) {
  return frame(id, kDelete, raw(std::uint8_t{0}) + u32(keys.size()) + strs(keys));
}
inline std::string remove_if(std::uint32_t id, std::string_view guard, std::uint64_t revision, const Texts& keys) {
  return frame(id, kDelete, raw(kGuarded) + str(guard) + u64(revision) + u32(keys.size()) + strs(keys));
}
inline std::string keep_alive(std::uint32_t id) { return frame(id, kKeepAlive, ""); }

inline std::string opened(std::uint32_t id, std::uint64_t session, std::uint64_t revision, std::string_view address,
                          bool any_run = true) {
  return frame(id, kDone, u64(session) + u64(revision) + str(address) + raw(std::uint8_t{any_run}));
}
inline std::string done(std::uint32_t id, std::uint64_t revision) {
  return frame(id, kDone, raw(std::uint8_t{1}) + u64(revision));
}
inline std::string failed(std::uint32_t id, std::uint64_t revision, std::string_view value) {
  return frame(id, kDone, raw(std::uint8_t{0}) + u64(revision) + str(value));
}
inline std::string removed(std::uint32_t id, std::uint64_t revision, std::uint32_t existed) {
  return frame(id, kDone, raw(std::uint8_t{1}) + u64(revision) + u32(existed));
}

// "[7: +key@3=value -key@4] #9/0 [7: ...]": pushes with their watch and events, replies with their id and status.
// Ends with "?" where the bytes are no whole frames.
inline std::string told(std::string_view bytes) {
  std::string text;
  const auto number = [&]<class Integer>(Integer kind) {
    if (bytes.size() < sizeof kind) {
      bytes = {};
      return kind;
    }
    std::memcpy(&kind, bytes.data(), sizeof kind);
    bytes.remove_prefix(sizeof kind);
    return kind;
  };
  const auto string = [&] {
    const auto size = number(std::uint32_t{0});
    const std::string found(bytes.substr(0, size));
    bytes.remove_prefix(found.size());
    return found;
  };
  while (!bytes.empty()) {
    const auto size = number(std::uint32_t{0});
    if (size < 5 || size > bytes.size()) {
      return text + "?";
    }
    const std::string_view rest = bytes.substr(size);
    const auto id = number(std::uint32_t{0});
    const auto status = number(std::uint8_t{0});
    text += text.empty() ? "" : " ";
    if (status != kPush) {
      text += "#" + std::to_string(id) + "/" + std::to_string(status);
    } else {
      text += "[" + std::to_string(number(std::uint32_t{0})) + ":";
      for (auto left = number(std::uint32_t{0}); left > 0 && bytes.size() > rest.size(); --left) {
        text += number(std::uint8_t{0}) != 0 ? " -" : " +";
        const auto revision = number(std::uint64_t{0});
        text += string() + "@" + std::to_string(revision);
        const std::string value = string();
        text += value.empty() ? "" : "=" + value;
      }
      text += id == 0 && bytes.size() == rest.size() ? "]" : "?";
    }
    bytes = rest;
  }
  return text;
}

}  // namespace rdzv::test::wire
