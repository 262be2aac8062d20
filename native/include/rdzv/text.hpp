// What is text: UTF-8 as RFC 3629 has it, and as Python decodes it.
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

namespace rdzv {

// Bytes of the character at the beginning; 0: that is not UTF-8. (RFC 3629)
inline std::size_t utf8_size(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto follows = [&](std::size_t count) {
    for (std::size_t i = 1; i <= count; ++i) {
      if ((byte(i) & 0xC0u) != 0x80u) {
        return false;
      }
    }
    return true;
  };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80) {
    return 1;
  }
  if (first >= 0xC2 && first <= 0xDF) {
    return follows(1) ? 2 : 0;
  }
  if (first >= 0xE0 && first <= 0xEF) {  // neither overlong nor a surrogate
    return follows(2) && !(first == 0xE0 && second < 0xA0) && !(first == 0xED && second > 0x9F) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {  // neither overlong nor beyond U+10FFFF
    return follows(3) && !(first == 0xF0 && second < 0x90) && !(first == 0xF4 && second > 0x8F) ? 4 : 0;
  }
  return 0;
}

inline bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t size = utf8_size(text);
    if (size == 0) {
      return false;
    }
    text.remove_prefix(size);
  }
  return true;
}

// Numbers in values, read as std::stoll reads them, because torch's server does.
// White space, a sign and digits at the beginning; what follows is ignored. Nothing: no digits, or out of range.
inline std::optional<std::int64_t> leading_number(std::string_view text) {
  const std::size_t start = text.find_first_not_of(" \t\n\v\f\r");
  if (start == std::string_view::npos) {
    return std::nullopt;
  }
  text.remove_prefix(start);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') {
    text.remove_prefix(1);
  }
  std::int64_t number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc() ? std::optional(number) : std::nullopt;
}

// Wraps around as two's complement does.
inline std::int64_t wrapping_sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

// Writes JSON, in the order of the calls. Bytes of a text that are not UTF-8 appear as \xff does in C, with its backslash.
class Json {
 public:
  Json& open(char bracket) {  // '{' or '['
    comma();
    text_ += bracket;
    first_ = true;
    return *this;
  }
  Json& close(char bracket) {
    text_ += bracket;
    first_ = false;
    return *this;
  }
  Json& key(std::string_view name) {
    comma();
    quote(name);
    text_ += ':';
    first_ = true;
    return *this;
  }
  Json& value(bool yes) {
    comma();
    text_ += yes ? "true" : "false";
    return *this;
  }
  template <std::integral Integer>
  Json& value(Integer number) {
    comma();
    text_ += std::to_string(number);
    return *this;
  }
  Json& value(double number) {
    comma();
    char text[400];  // the largest double has 309 digits
    const auto end = std::to_chars(text, text + sizeof text, number, std::chars_format::fixed, 6).ptr;
    text_.append(text, static_cast<std::size_t>(end - text));
    return *this;
  }
  Json& value(std::string_view string) {
    comma();
    quote(string);
    return *this;
  }
  template <class Value>
  Json& pair(std::string_view name, const Value& content) {
    return key(name).value(content);
  }
  std::string take() { return std::move(text_); }

 private:
  void comma() {
    if (!first_) {
      text_ += ',';
    }
    first_ = false;
  }
  void quote(std::string_view string) {
    text_ += '"';
    while (!string.empty()) {
      const char c = string[0];
      const std::size_t size = utf8_size(string);
      char escaped[8];
      if (size == 0) {
        std::snprintf(escaped, sizeof escaped, "\\\\x%02x", static_cast<unsigned char>(c));
        text_ += escaped;
      } else if (c == '"' || c == '\\') {
        text_ += '\\';
        text_ += c;
      } else if (static_cast<unsigned char>(c) < 0x20) {
        std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
        text_ += escaped;
      } else {
        text_ += string.substr(0, size);
      }
      string.remove_prefix(size > 0 ? size : 1);
    }
    text_ += '"';
  }

  std::string text_;
  bool first_ = true;
};

}  // namespace rdzv
