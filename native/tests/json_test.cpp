// The JSON of the statistics: whatever a client has named its keys, it can be read.
#include "rdzv/text.hpp"

#include <optional>

#include "check.hpp"
#include "random.hpp"

namespace rdzv::test {

namespace {

std::string quoted(std::string_view text) { return Json().value(text).take(); }

// The code point at the beginning of `text` and its size, from the definition of UTF-8.
struct Decoded {
  std::uint32_t code;
  std::size_t size;
};
std::optional<Decoded> decode(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])); };
  const std::uint32_t first = byte(0);
  const std::size_t size = first < 0x80 ? 1 : first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : first >> 3 == 30 ? 4 : 0;
  if (size == 0 || text.size() < size) {
    return std::nullopt;
  }
  std::uint32_t code = size == 1 ? first : first & (0xFFu >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    if (byte(i) >> 6 != 2) {
      return std::nullopt;
    }
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr std::uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[size] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
    return std::nullopt;
  }
  return Decoded{code, size};
}

std::string expected(std::string_view text) {
  std::string json = "\"";
  while (!text.empty()) {
    const auto decoded = decode(text);
    char escaped[16] = "";
    if (!decoded) {
      std::snprintf(escaped, sizeof escaped, "\\\\x%02x", static_cast<unsigned char>(text[0]));
    } else if (decoded->code < 0x20) {
      std::snprintf(escaped, sizeof escaped, "\\u%04x", decoded->code);
    } else if (text[0] == '"' || text[0] == '\\') {
      std::snprintf(escaped, sizeof escaped, "\\%c", text[0]);
    }
    const std::size_t size = decoded ? decoded->size : 1;
    json += escaped[0] != '\0' ? std::string(escaped) : std::string(text.substr(0, size));
    text.remove_prefix(size);
  }
  return json + '"';
}

}  // namespace

TEST(objects_and_lists) {
  Json json;
  json.open('{').pair("a", 1).pair("b", -2.5).key("list").open('[');
  json.value(std::string_view("x"))
      .value(std::uint64_t{18446744073709551615u})
      .open('{')
      .close('}')
      .open('[')
      .close(']');
  json.close(']').key("empty").open('{').close('}').pair("last", std::string_view("y")).close('}');
  CHECK_EQUAL(json.take(), R"({"a":1,"b":-2.500000,"list":["x",18446744073709551615,{},[]],"empty":{},"last":"y"})");
}

TEST(text_that_needs_escapes) {
  CHECK_EQUAL(quoted("a\"b\\c\n\t"), R"("a\"b\\c\u000a\u0009")");
  CHECK_EQUAL(quoted(std::string("\0\x1f\x7f", 3)), "\"\\u0000\\u001f\x7f\"");
  CHECK_EQUAL(quoted("Gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80"),
              "\"Gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80\"");
  CHECK_EQUAL(quoted("\xff\xc3"), R"("\\xff\\xc3")");
  CHECK_EQUAL(Json().open('{').pair("k\"", 1).close('}').take(), R"({"k\"":1})");
}

TEST(every_two_bytes_are_judged_as_utf8_is_defined) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string text{static_cast<char>(first), static_cast<char>(second), '\x80', '\x80'};
      if (quoted(text) != expected(text)) {
        CHECK_EQUAL(text, std::string("what UTF-8 says"));
      }
    }
  }
}

TEST(random_text_is_judged_as_utf8_is_defined) {
  Random random(6);
  for (int round = 0; round < 50'000; ++round) {
    std::string text;
    for (std::size_t left = random.below(8); left > 0; --left) {
      text += static_cast<char>(random.one_in(2) ? random.pick({0x80, 0xbf, 0xc2, 0xe0, 0xed, 0xf0, 0xf4})
                                                 : random.below(256));
    }
    if (quoted(text) != expected(text)) {
      CHECK_EQUAL(text, std::string("what UTF-8 says"));
    }
  }
}

TEST(large_and_small_numbers) {
  CHECK_EQUAL(Json().value(0.0).take(), "0.000000");
  CHECK_EQUAL(Json().value(0.1234567).take(), "0.123457");
  CHECK_EQUAL(Json().value(-1e300).take().size(), 1u + 301 + 7);
  CHECK_EQUAL(Json().value(INT64_MIN).take(), "-9223372036854775808");
}

}  // namespace rdzv::test
