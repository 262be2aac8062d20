// Numbers in values, against the standard library, which is what torch's server reads them with.
#include "rdzv/text.hpp"

#include <stdexcept>

#include "check.hpp"
#include "random.hpp"

namespace rdzv::test {

namespace {

std::optional<std::int64_t> torch_reads(const std::string& text) {
  try {
    return std::stoll(text);
  } catch (const std::logic_error&) {
    return std::nullopt;
  }
}

void compare(const std::string& text) {
  if (leading_number(text) != torch_reads(text)) {
    CHECK_EQUAL(text, std::string("read as std::stoll reads it"));
  }
}

}  // namespace

TEST(numbers_are_read_as_stoll_reads_them) {
  for (const char* const text : {"",
                                 " ",
                                 "0",
                                 "-0",
                                 "+0",
                                 "007",
                                 "5",
                                 "-7",
                                 "+7",
                                 " \t\n\v\f\r42",
                                 "42 ",
                                 "42abc",
                                 "0x10",
                                 "1e9",
                                 "1.5",
                                 "--1",
                                 "+-1",
                                 "-+1",
                                 "++1",
                                 "+ 1",
                                 "- 1",
                                 "+",
                                 "-",
                                 "abc",
                                 "9223372036854775807",
                                 "9223372036854775808",
                                 "-9223372036854775808",
                                 "-9223372036854775809",
                                 "00000000000000000000000000001",
                                 "99999999999999999999999",
                                 "+9223372036854775807"}) {
    compare(text);
  }
  compare(std::string("1\0002", 3));
  compare(std::string("\0001", 2));
  compare(std::string(5000, ' ') + "3");
}

TEST(random_text_is_read_as_stoll_reads_it) {
  Random random(5);
  const std::string alphabet("0123456789+- \t\n\v\f\r\0ax.,", 24);
  for (int round = 0; round < 200'000; ++round) {
    std::string text;
    for (std::size_t left = random.below(random.one_in(3) ? 24 : 6); left > 0; --left) {
      text += random.one_in(20) ? static_cast<char>(random.next()) : alphabet[random.below(random.one_in(2) ? 10 : 24)];
    }
    compare(text);
  }
}

TEST(sums_wrap_around) {
  CHECK_EQUAL(wrapping_sum(INT64_MAX, 1), INT64_MIN);
  CHECK_EQUAL(wrapping_sum(INT64_MIN, -1), INT64_MAX);
  CHECK_EQUAL(wrapping_sum(INT64_MIN, INT64_MIN), 0);
  CHECK_EQUAL(wrapping_sum(-3, 5), 2);
}

}  // namespace rdzv::test
