// Writes JSON, in the order of the calls. Bytes of a text that are not UTF-8 appear as \xff does in C, with its backslash.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdio>
#include <string>
#include <string_view>

#include "rdzv/text.hpp"

namespace rdzv {

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
