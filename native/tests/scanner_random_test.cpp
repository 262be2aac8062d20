// The scanner against the reference parser, on random requests, one after the other, in random pieces.
#include <algorithm>

#include "check.hpp"
#include "random.hpp"
#include "reference_parser.hpp"
#include "requests.hpp"
#include "rdzv/query.hpp"

namespace rdzv::test {

namespace {

constexpr Limits kLimits{.key_bytes = 20, .value_bytes = 40, .keys_per_request = 5, .request_bytes = 200};

// Mostly valid.
std::string random_request(Random& random) {
  const auto key = [&] { return random.bytes(random.below(random.one_in(60) ? 24 : 21)); };
  const auto value = [&] { return random.bytes(random.below(random.one_in(60) ? 44 : 41)); };
  const auto keys = [&](bool values) {
    wire::Texts all;
    for (std::size_t left = random.below(random.one_in(30) ? 7 : 6); left > 0; --left) {
      all.push_back(key());
      if (values) {
        all.push_back(value());
      }
    }
    return all;
  };
  switch (random.below(random.one_in(100) ? 25 : 19)) {
    case 0: return wire::greeting();
    case 1: return wire::set(key(), value());
    case 2: return wire::compare_set(key(), value(), value());
    case 3: return wire::get(key());
    case 4: return wire::add(key(), static_cast<std::int64_t>(random.next()));
    case 5: return wire::check(keys(false));
    case 6: return wire::wait(keys(false));
    case 7: return wire::num_keys();
    case 8: return wire::delete_key(key());
    case 9: return wire::append(key(), value());
    case 10: return wire::multi_get(keys(false));
    case 11: return wire::multi_set(keys(true));
    case 12: return wire::cancel_wait();
    case 13: return wire::ping(static_cast<std::uint32_t>(random.next()));
    case 14: return wire::queue_push(key(), value());
    case 15: return wire::queue_pop(key());
    case 16: return wire::queue_len(key());
    case 17: return wire::list_keys();
    case 18: return wire::barrier(key(), static_cast<std::int64_t>(random.next()));
    default: return random.bytes(random.below(30));
  }
}

struct Scanned {
  std::vector<std::size_t> sizes;
  Refusal refusal = Refusal::kNone;
  bool operator==(const Scanned&) const = default;
};

Scanned scan_all(std::string_view bytes, std::size_t largest_piece, Random& random) {
  Scanned found;
  Scanner scanner;
  std::size_t begin = 0, arrived = 0;
  while (true) {
    switch (scanner.advance(bytes.substr(begin, arrived - begin), kLimits)) {
      case Scanner::Result::kComplete:
        found.sizes.push_back(scanner.size());
        begin += scanner.size();
        scanner.reset();
        continue;
      case Scanner::Result::kRefused: found.refusal = scanner.refusal(); return found;
      case Scanner::Result::kIncomplete: break;
    }
    if (arrived == bytes.size()) {
      return found;
    }
    arrived = std::min(bytes.size(), arrived + 1 + random.below(largest_piece));
  }
}

Scanned parse_all(std::string_view bytes) {
  Scanned found;
  while (true) {
    const Parsed parsed = parse(bytes, kLimits);
    if (parsed.size == 0) {
      found.refusal = parsed.refusal;
      return found;
    }
    found.sizes.push_back(parsed.size);
    bytes.remove_prefix(parsed.size);
  }
}

}  // namespace

TEST(random_requests_are_found_as_the_reference_finds_them) {
  Random random(20241121);
  std::size_t requests = 0, refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bytes;
    for (std::size_t left = 1 + random.below(12); left > 0; --left) {
      bytes += random_request(random);
    }
    const Scanned expected = parse_all(bytes);
    requests += expected.sizes.size();
    refused += expected.refusal != Refusal::kNone ? 1 : 0;
    for (const std::size_t largest_piece : {std::size_t{1}, std::size_t{3}, std::size_t{30}, bytes.size() + 1}) {
      if (!(scan_all(bytes, largest_piece, random) == expected)) {
        CHECK_EQUAL(bytes, std::string("as the reference has it"));
        return;
      }
    }
  }
  // The generator has to keep making both.
  CHECK(requests > 10000);
  CHECK(refused > 300);
}

TEST(random_bytes_are_judged_as_the_reference_judges_them) {
  Random random(77);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = random.bytes(1 + random.below(60));
    bytes[0] = static_cast<char>(random.below(20));
    for (std::size_t i = 1; i + 8 <= bytes.size(); i += 8 + random.below(8)) {
      bytes.replace(i, 8, wire::u64(random.below(30)));
    }
    const Scanned expected = parse_all(bytes);
    CHECK(scan_all(bytes, 1, random) == expected);
    CHECK(scan_all(bytes, bytes.size(), random) == expected);
  }
}

}  // namespace rdzv::test
