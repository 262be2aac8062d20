// Random clients against the reference store: short, the same in every run. The fuzzer goes on where this ends.
#include <stdexcept>

#include "check.hpp"
#include "lockstep.hpp"
#include "random.hpp"
#include "requests.hpp"

namespace rdzv::test {

namespace {

constexpr Limits kLimits{.key_bytes = 40, .value_bytes = 30'000, .keys_per_request = 8, .request_bytes = 40'000};

std::string sensible_request(Random& random) {
  const auto key = [&] { return std::string(1, static_cast<char>('a' + random.below(5))); };
  const auto value = [&] {
    return random.one_in(10) ? std::string(20'000 + random.below(100), 'v') : std::to_string(random.below(4));
  };
  switch (1 + random.below(18)) {
    case 1: return wire::set(key(), value());
    case 2: return wire::compare_set(key(), value(), value());
    case 3: return wire::get(key());
    case 4: return wire::add(key(), static_cast<std::int64_t>(random.below(3)) - 1);
    case 5: return wire::check({key(), key()});
    case 6: return wire::wait({key(), key(), key()});
    case 7: return wire::num_keys();
    case 8: return wire::delete_key(key());
    case 9: return wire::append(key(), std::to_string(random.below(3)));
    case 10: return wire::multi_get({key(), key(), key()});
    case 11: return wire::multi_set({key(), value(), key(), value()});
    case 12: return wire::cancel_wait();
    case 13: return wire::ping(static_cast<std::uint32_t>(random.next()));
    case 14: return wire::queue_push(key(), value());
    case 15: return wire::queue_pop(key());
    case 16: return wire::queue_len(key());
    case 17: return wire::list_keys();
    default: return wire::barrier(key(), static_cast<std::int64_t>(random.below(5)));
  }
}

}  // namespace

TEST(three_clients_at_random_are_answered_as_the_reference_answers_them) {
  Random random(2024);
  std::uint64_t requests = 0;
  for (int round = 0; round < 250; ++round) {
    Lockstep lockstep(kLimits);
    try {
      for (std::size_t client = 0; client < Lockstep::kClients; ++client) {
        lockstep.say(client, client == 2 ? wire::framed_greeting() + wire::frame(1, 2, "other") : wire::greeting());
      }
      for (int step = 0; step < 120; ++step) {
        const std::size_t client = random.below(3);
        const std::string said = sensible_request(random) + (random.one_in(3) ? sensible_request(random) : "");
        const std::size_t cut = random.below(said.size());
        lockstep.say(client, said.substr(0, cut));
        lockstep.say(client, said.substr(cut));
        if (lockstep.refusal(client) != Refusal::kNone) {
          lockstep.leave(client);
          lockstep.say(client, wire::greeting());
        } else if (random.one_in(200)) {
          lockstep.wipe();
        }
      }
      lockstep.finish();
    } catch (const std::runtime_error& wrong) {
      CHECK_EQUAL(std::string(wrong.what()), "");
      return;
    }
    requests += lockstep.requests();
  }
  CHECK(requests > 25'000);
}

TEST(garbage_is_refused_as_the_reference_refuses_it) {
  Random random(13);
  int refused = 0;
  for (int round = 0; round < 5000; ++round) {
    Lockstep lockstep(kLimits);
    try {
      lockstep.say(0, random.pick({std::string(), wire::greeting(), wire::framed_greeting()}));
      for (int piece = 0; piece < 5; ++piece) {
        std::string garbage = random.bytes(random.below(40));
        if (!garbage.empty() && random.one_in(2)) {
          garbage[0] = static_cast<char>(random.below(21));
        }
        lockstep.say(0, garbage);
      }
      refused += lockstep.refusal(0) != Refusal::kNone ? 1 : 0;
      lockstep.finish();
    } catch (const std::runtime_error& wrong) {
      CHECK_EQUAL(std::string(wrong.what()), "");
      return;
    }
  }
  CHECK(refused > 4000);
}

}  // namespace rdzv::test
