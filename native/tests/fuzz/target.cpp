// What must hold for all bytes that clients may send:
// - replies, refusals, counts and what is stored are those of the reference store (lockstep.hpp);
// - they do not depend on where the bytes were cut;
// - memory stays in proportion to what has arrived;
// - nothing is left of clients that have gone.
#include "target.hpp"

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "events.hpp"
#include "guarded.hpp"
#include "lockstep.hpp"
#include "memory.hpp"

namespace rdzv::fuzz {

namespace {

using test::Lockstep;
using test::Room;
using test::Talk;

constexpr Limits kSmall{.key_bytes = 40, .value_bytes = 30'000, .keys_per_request = 12, .request_bytes = 50'000};
constexpr Limits kTiny{.key_bytes = 20, .value_bytes = 60, .keys_per_request = 4, .request_bytes = 100};
constexpr std::size_t kByteByByte = 2000;
constexpr std::size_t kMaxInput = 1 << 20;

struct Heard {
  std::string replies;
  Refusal refusal;
  bool operator==(const Heard&) const = default;
};

// A client alone, in pieces of `piece` bytes.
Heard alone(const Limits& limits, std::string_view said, std::size_t piece) {
  Room room(limits);
  Talk talk(room);
  Heard heard{};
  while (!said.empty() && talk.refusal() == Refusal::kNone) {
    talk.say(said.substr(0, piece));
    said.remove_prefix(std::min(piece, said.size()));
    heard.replies += talk.hear();
    for (int turns = 0; talk.conversation().stopped_early() && turns < 1'000'000; ++turns) {
      talk.say("");
      heard.replies += talk.hear();
    }
  }
  heard.refusal = talk.refusal();
  return heard;
}

// Who knows no token: nothing of what it says is run, and what it hears is one verdict, or a challenge and one.
void expect_nothing_without_a_token(const Limits& limits, std::string_view said, std::size_t piece) {
  test::GuardedRoom guarded(limits);
  Talk talk(guarded.room, true);
  std::size_t heard = 0;
  while (!said.empty() && talk.refusal() == Refusal::kNone) {
    talk.say(said.substr(0, piece));
    said.remove_prefix(std::min(piece, said.size()));
    heard += talk.hear().size();
  }
  if (talk.conversation().greeted() || heard > kChallengeSize + kVerdictSize || talk.left().size() > 66'000 + piece) {
    throw std::runtime_error("a stranger was served");
  }
}

Heard with_token(const Limits& limits, const std::string& said) {
  test::GuardedRoom guarded(limits);
  Talk talk(guarded.room, true);
  if (!guarded.prove(talk, Purpose::kStore, "run")) {
    throw std::runtime_error("a token was not accepted");
  }
  Heard heard{};
  talk.say(said);
  heard.replies = talk.hear();
  for (int turns = 0; talk.conversation().stopped_early() && turns < 1'000'000; ++turns) {
    talk.say("");
    heard.replies += talk.hear();
  }
  heard.refusal = talk.refusal();
  return heard;
}

}  // namespace

std::uint64_t run(std::string_view input) {
  const Program program = decode(input.substr(0, kMaxInput));
  const Limits limits = program.limits % 3 == 0 ? kSmall : program.limits % 3 == 1 ? Limits() : kTiny;
  const std::size_t before = test::live_bytes();
  // The reference too holds everything, and its replies. A reply may be many times longer than its request, but is
  // drained after each event.
  const std::size_t most = before + (24u << 20) + 200 * input.size();
  std::string first;  // what client 0 says, until it leaves
  bool recording = true;
  Lockstep lockstep(limits);
  for (const Event& event : program.events) {
    switch (event.kind) {
      case Event::Kind::kSay:
        lockstep.say(event.client, event.bytes);
        first += event.client == 0 && recording ? event.bytes : "";
        break;
      case Event::Kind::kLeave:
        lockstep.leave(event.client);
        recording = recording && event.client != 0;
        break;
      case Event::Kind::kWipe: lockstep.wipe(); break;
    }
    if (test::live_bytes() > most) {
      throw std::runtime_error("memory grows beyond what has arrived");
    }
  }
  lockstep.finish();
  const Heard whole = alone(limits, first, first.size());
  if (first.size() <= kByteByByte && !(alone(limits, first, 1) == whole)) {
    throw std::runtime_error("byte by byte the replies are others");
  }
  if (!(alone(limits, first, 7) == whole)) {
    throw std::runtime_error("in pieces the replies are others");
  }
  expect_nothing_without_a_token(limits, first, first.size());
  expect_nothing_without_a_token(limits, first, 7);
  if (first.starts_with('\0') && !(with_token(limits, first) == whole)) {
    throw std::runtime_error("to who has proved a token the replies are others");
  }
  return lockstep.requests();
}

}  // namespace rdzv::fuzz

// For libFuzzer, and whatever else speaks its language.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    rdzv::fuzz::run({reinterpret_cast<const char*>(data), size});
  } catch (const std::runtime_error& wrong) {
    std::fprintf(stderr, "%s\n", wrong.what());
    std::abort();
  }
  return 0;
}
