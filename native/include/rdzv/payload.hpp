// Reads the payload of a frame, and writes that of a reply: little endian, a text is a u32 length and its bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "rdzv/limits.hpp"
#include "rdzv/text.hpp"

namespace rdzv {

// Nothing is copied. After the first thing that is wrong everything reads as 0 or empty.
class Payload {
 public:
  Payload(std::string_view bytes, const Limits& limits) : left_(bytes), limits_(limits) {}

  template <class Integer>
  Integer number() {
    Integer value{};
    if (left_.size() < sizeof value) {
      fail(Refusal::kBadFrame);
    } else {
      std::memcpy(&value, left_.data(), sizeof value);
      left_.remove_prefix(sizeof value);
    }
    return value;
  }
  std::string_view key() { return text(limits_.key_bytes, Refusal::kKeyTooLong); }
  // A key that people and other nodes read: that it is not UTF-8 is for whoever reads on to say.
  std::string_view name() {
    const std::string_view name = key();
    names_are_utf8_ = names_are_utf8_ && is_utf8(name);
    return name;
  }
  std::string_view value() { return text(limits_.value_bytes, Refusal::kValueTooLong); }
  // Of items to come.
  std::uint32_t count() {
    const auto count = number<std::uint32_t>();
    if (count > limits_.keys_per_request) {
      fail(Refusal::kTooManyKeys);
    }
    return ok() ? count : 0;
  }
  std::uint8_t flags(std::uint8_t known) {
    const auto flags = number<std::uint8_t>();
    if ((flags & ~known) != 0) {
      fail(Refusal::kBadFrame);
    }
    return flags;
  }
  void end() {
    if (!left_.empty()) {
      fail(Refusal::kBadFrame);
    }
  }
  bool ok() const { return refusal_ == Refusal::kNone; }
  Refusal refusal() const { return refusal_; }
  bool names_are_utf8() const { return names_are_utf8_; }

 private:
  std::string_view text(std::uint64_t most, Refusal too_long) {
    const auto size = number<std::uint32_t>();
    if (size > most) {
      fail(too_long);
    } else if (size > left_.size()) {
      fail(Refusal::kBadFrame);
    }
    if (!ok()) {
      return {};
    }
    const std::string_view text = left_.substr(0, size);
    left_.remove_prefix(size);
    return text;
  }
  void fail(Refusal why) {
    if (ok()) {
      refusal_ = why;
    }
    left_ = {};
  }

  std::string_view left_;
  const Limits& limits_;
  Refusal refusal_ = Refusal::kNone;
  bool names_are_utf8_ = true;
};

template <class Integer>
void add_number(std::string& to, Integer number) {
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  to.append(bytes, sizeof number);
}

inline void add_text(std::string& to, std::string_view text) {
  add_number(to, static_cast<std::uint32_t>(text.size()));
  to.append(text);
}

// Reads the fields of a request that the scanner has found complete: nothing is checked again, nothing is copied.
class Fields {
 public:
  // `body`: the request after its type byte. The views returned live as long as its bytes.
  explicit Fields(std::string_view body) : next_(body.data()) {}

  std::string_view bytes() {
    const auto size = number<std::uint64_t>();
    const std::string_view view(next_, size);
    next_ += size;
    return view;
  }

  template <class Integer>
  Integer number() {
    Integer value;
    std::memcpy(&value, next_, sizeof value);
    next_ += sizeof value;
    return value;
  }

 private:
  const char* next_;
};

}  // namespace rdzv
