// The scanner on requests written by hand: split anywhere, at and beyond every limit.
#include "rdzv/query.hpp"

#include "check.hpp"
#include "requests.hpp"

namespace rdzv::test {

namespace {

using Result = Scanner::Result;

constexpr Limits kSmall{.key_bytes = 8, .value_bytes = 16, .keys_per_request = 4, .request_bytes = 100};

Result scan(const std::string& bytes, const Limits& limits, Scanner& scanner) { return scanner.advance(bytes, limits); }

Refusal refusal(const std::string& bytes, const Limits& limits = kSmall) {
  Scanner scanner;
  return scan(bytes, limits, scanner) == Result::kRefused ? scanner.refusal() : Refusal::kNone;
}

bool complete(const std::string& bytes, const Limits& limits = kSmall) {
  Scanner scanner;
  return scan(bytes, limits, scanner) == Result::kComplete && scanner.size() == bytes.size();
}

}  // namespace

TEST(every_query_type_in_one_piece) {
  const auto requests = wire::one_of_each();
  REQUIRE_EQUAL(requests.size(), kQueryCount);
  for (std::size_t type = 0; type < requests.size(); ++type) {
    CHECK_EQUAL(static_cast<std::size_t>(requests[type][0]), type);
    CHECK(complete(requests[type], Limits()));
  }
}

TEST(every_query_type_byte_by_byte) {
  for (const std::string& request : wire::one_of_each()) {
    Scanner scanner;
    for (std::size_t size = 0; size < request.size(); ++size) {
      CHECK(scan(request.substr(0, size), Limits(), scanner) == Result::kIncomplete);
    }
    CHECK(scan(request, Limits(), scanner) == Result::kComplete);
    CHECK_EQUAL(scanner.size(), request.size());
  }
}

TEST(every_query_type_split_at_every_two_places) {
  for (const std::string& request : wire::one_of_each()) {
    for (std::size_t first = 0; first < request.size(); ++first) {
      for (std::size_t second = first; second < request.size(); ++second) {
        Scanner scanner;
        CHECK(scan(request.substr(0, first), Limits(), scanner) == Result::kIncomplete);
        CHECK(scan(request.substr(0, second), Limits(), scanner) == Result::kIncomplete);
        CHECK(scan(request, Limits(), scanner) == Result::kComplete);
      }
    }
  }
}

TEST(what_follows_a_request_is_not_looked_at) {
  for (const std::string& request : wire::one_of_each()) {
    Scanner scanner;
    CHECK(scan(request + std::string(40, '\xff'), Limits(), scanner) == Result::kComplete);
    CHECK_EQUAL(scanner.size(), request.size());
  }
}

TEST(reset_begins_a_new_request) {
  Scanner scanner;
  for (const std::string& request : wire::one_of_each()) {
    CHECK(scan(request, Limits(), scanner) == Result::kComplete);
    CHECK_EQUAL(scanner.size(), request.size());
    scanner.reset();
  }
}

TEST(unknown_types_are_refused_with_their_first_byte) {
  for (int type = static_cast<int>(kQueryCount); type < 256; ++type) {
    CHECK_EQUAL(refusal(wire::op(type)), Refusal::kUnknownRequest);
  }
}

TEST(lengths_at_their_limits) {
  const std::string key(8, 'k'), value(16, 'v');
  CHECK(complete(wire::get(key)));
  CHECK(complete(wire::add(key, 1)));
  CHECK(complete(wire::set(key, value)));
  CHECK(complete(wire::compare_set(key, value, value)));
  CHECK(complete(wire::multi_set({key, value, key, value})));
  CHECK(complete(wire::multi_get({key, key, key, key})));
  CHECK(complete(wire::check({})));
  CHECK(complete(wire::multi_set({})));
  CHECK(complete(wire::set("", "")));
}

TEST(lengths_beyond_their_limits_are_refused_before_the_bytes_come) {
  const std::string key(8, 'k'), value(16, 'v');
  for (const std::uint64_t size : {std::uint64_t{9}, std::uint64_t{1} << 30, ~std::uint64_t{0}}) {
    for (const int type : {1, 2, 3, 4, 8, 9, 14, 15, 16, 18}) {
      CHECK_EQUAL(refusal(wire::op(type) + wire::u64(size)), Refusal::kKeyTooLong);
    }
    CHECK_EQUAL(refusal(wire::wait({key}).substr(0, 9) + wire::u64(size)), Refusal::kKeyTooLong);
  }
  for (const std::uint64_t size : {std::uint64_t{17}, std::uint64_t{1} << 33, ~std::uint64_t{0}}) {
    for (const int type : {1, 2, 9, 14}) {
      CHECK_EQUAL(refusal(wire::op(type) + wire::text(key) + wire::u64(size)), Refusal::kValueTooLong);
    }
    CHECK_EQUAL(refusal(wire::op(2) + wire::text(key) + wire::text(value) + wire::u64(size)), Refusal::kValueTooLong);
    CHECK_EQUAL(refusal(wire::op(11) + wire::u64(1) + wire::text(key) + wire::u64(size)), Refusal::kValueTooLong);
  }
  for (const std::uint64_t count : {std::uint64_t{5}, ~std::uint64_t{0}}) {  // the second is -1 keys
    for (const int type : {5, 6, 10, 11}) {
      CHECK_EQUAL(refusal(wire::op(type) + wire::u64(count)), Refusal::kTooManyKeys);
    }
  }
}

TEST(torchs_limits_are_the_defaults) {
  CHECK(complete(wire::get(std::string(8192, 'k')), Limits()));
  CHECK_EQUAL(refusal(wire::op(3) + wire::u64(8193), Limits()), Refusal::kKeyTooLong);
  CHECK(complete(wire::set("/k", std::string(8u << 20, 'v')), Limits()));
  CHECK_EQUAL(refusal(wire::op(1) + wire::text("/k") + wire::u64((8u << 20) + 1), Limits()), Refusal::kValueTooLong);
  CHECK(complete(wire::check(wire::Texts(131072, "k")), Limits()));
  CHECK_EQUAL(refusal(wire::op(5) + wire::u64(131073), Limits()), Refusal::kTooManyKeys);
}

TEST(a_whole_request_has_a_limit_too) {
  constexpr Limits limits{.key_bytes = 50, .value_bytes = 50, .keys_per_request = 9, .request_bytes = 100};
  // 1 byte, 8 of the count, 8 of each length
  CHECK(complete(wire::check({std::string(50, 'a'), std::string(25, 'b')}), limits));
  CHECK_EQUAL(refusal(wire::op(5) + wire::u64(2) + wire::text(std::string(50, 'a')) + wire::u64(26), limits),
              Refusal::kRequestTooLong);
}

TEST(limits_that_limit_nothing_do_not_overflow) {
  constexpr std::uint64_t kAny = ~std::uint64_t{0};
  constexpr Limits limits{.key_bytes = kAny, .value_bytes = kAny, .keys_per_request = kAny, .request_bytes = kAny};
  CHECK(!complete(wire::op(3) + wire::u64(kAny), limits));
  CHECK(!complete(wire::op(1) + wire::u64(kAny - 8), limits));
  CHECK(!complete(wire::op(1) + wire::text("k") + wire::u64(kAny - 16), limits));
  CHECK(!complete(wire::op(11) + wire::u64(kAny) + wire::u64(kAny - 12), limits));
}

TEST(announced_sizes_that_never_come_stay_incomplete) {
  Scanner scanner;
  std::string bytes = wire::op(1) + wire::u64(8192) + std::string(100, 'k');
  CHECK(scan(bytes, Limits(), scanner) == Result::kIncomplete);
  CHECK(scan(bytes, Limits(), scanner) == Result::kIncomplete);  // again without anything new
  scanner.reset();
  CHECK(scan(wire::op(10) + wire::u64(131072), Limits(), scanner) == Result::kIncomplete);
}

TEST(fields_that_were_scanned_are_not_read_again) {
  // What is behind the scanner is overwritten with lengths that would be refused. The type byte stays: it is the one
  // thing that a scanner without a copy of its own has to look at again.
  std::string request = wire::multi_set({"/a", "one", "/b", "", "/c", "three", "/d", "4"});
  Scanner scanner;
  std::string arrived;
  for (std::size_t i = 0; i < request.size(); ++i) {
    arrived = request.substr(0, i + 1);
    // The current field may be a length that is not complete: its 8 bytes stay.
    for (std::size_t j = 1; j + 8 <= i; ++j) {
      arrived[j] = '\xff';
    }
    CHECK(scan(arrived, Limits(), scanner) == (i + 1 < request.size() ? Result::kIncomplete : Result::kComplete));
  }
  CHECK_EQUAL(scanner.size(), request.size());
}

TEST(a_large_request_byte_by_byte_is_linear_work) {
  // 131,072 keys in 1.3 million pieces: whoever began again with each would need hours.
  const std::string request = wire::check(wire::Texts(131072, "/k"));
  Scanner scanner;
  const std::string_view all = request;
  for (std::size_t size = 1; size < all.size(); ++size) {
    if (scanner.advance(all.substr(0, size), Limits()) != Result::kIncomplete) {
      CHECK(!"complete too early");
      return;
    }
  }
  CHECK(scanner.advance(all, Limits()) == Result::kComplete);
}

}  // namespace rdzv::test
