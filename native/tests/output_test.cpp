// Replies on their way to the socket: whatever part of them is taken at a time, the bytes are the same.
#include "rdzv/output.hpp"

#include "check.hpp"
#include "memory.hpp"
#include "random.hpp"
#include "requests.hpp"
#include "talk.hpp"

namespace rdzv::test {

namespace {

Output::Shared shared(std::string text) { return std::make_shared<const std::string>(std::move(text)); }

// Takes at most `most` bytes from the front, as a socket would.
std::string take(Output& output, std::size_t most, std::size_t parts_at_once) {
  iovec parts[20];
  const std::size_t count = output.gather(parts, parts_at_once);
  CHECK(count <= parts_at_once);
  CHECK((count > 0) == !output.empty());
  std::string taken;
  for (std::size_t i = 0; i < count && taken.size() < most; ++i) {
    taken.append(static_cast<const char*>(parts[i].iov_base), std::min(parts[i].iov_len, most - taken.size()));
  }
  CHECK(!taken.empty() || output.empty());
  output.consume(taken.size());
  return taken;
}

}  // namespace

TEST(nothing_to_send) {
  Output output;
  iovec parts[1];
  CHECK(output.empty());
  CHECK_EQUAL(output.gather(parts, 1), 0u);
  CHECK_EQUAL(output.owned(), 0u);
}

TEST(numbers_and_bytes_are_as_on_the_wire) {
  Output output;
  output.number<std::int64_t>(-2);
  output.number('\1');
  output.bytes(std::string_view("ab"));
  output.bytes(shared("cd"));
  output.bytes(shared(""));
  output.raw("end");
  CHECK_EQUAL(output.size(), 8u + 1 + 10 + 10 + 8 + 3);
  CHECK_EQUAL(output.owned(), output.size() - 2);
  CHECK_EQUAL(drain(output), wire::i64(-2) + "\1" + wire::text("ab") + wire::text("cd") + wire::text("") + "end");
  CHECK(output.empty());
  CHECK_EQUAL(output.owned(), 0u);
}

TEST(random_sends_of_random_replies) {
  Random random(4);
  for (int round = 0; round < 300; ++round) {
    Output output;
    std::string expected, sent;
    std::size_t owned = 0;
    if (random.one_in(2)) {
      std::string lent;
      lent.reserve(1000);
      output.lend(std::move(lent));
    }
    for (int step = 0; step < 60; ++step) {
      if (random.one_in(2)) {
        const std::string value = random.bytes(random.below(random.one_in(5) ? 5000 : 50));
        switch (random.below(3)) {
          case 0:
            output.raw(value);
            expected += value;
            owned += value.size();
            break;
          case 1:
            output.bytes(std::string_view(value));
            expected += wire::text(value);
            owned += value.size() + 8;
            break;
          case 2:
            output.bytes(shared(value));
            expected += wire::text(value);
            owned += 8;
            break;
        }
      } else {
        sent += take(output, 1 + random.below(random.one_in(4) ? 6000 : 60), 1 + random.below(20));
      }
      CHECK_EQUAL(output.size(), expected.size() - sent.size());
      CHECK(output.owned() <= owned);
    }
    sent += drain(output);
    REQUIRE(sent == expected);
    CHECK_EQUAL(output.owned(), 0u);
  }
}

TEST(a_part_limit_is_kept) {
  Output output;
  std::string expected;
  for (int i = 0; i < 10; ++i) {
    output.bytes(shared("chunk " + std::to_string(i)));
    expected += wire::text("chunk " + std::to_string(i));
  }
  std::string sent;
  while (!output.empty()) {
    sent += take(output, 5, 2);
  }
  CHECK_EQUAL(sent, expected);
}

TEST(shared_values_are_not_copied) {
  const auto value = shared(std::string(1 << 20, 'v'));
  Output output;
  for (int i = 0; i < 100; ++i) {
    output.bytes(value);
  }
  CHECK_EQUAL(value.use_count(), 101);
  CHECK_EQUAL(output.size(), 100u * (8 + (1 << 20)));
  CHECK_EQUAL(output.owned(), 800u);
  output.consume(50 * (8 + (1 << 20)));
  CHECK_EQUAL(value.use_count(), 51);  // those that are sent are let go
  output.consume(output.size());
  CHECK_EQUAL(value.use_count(), 1);
}

TEST(a_backlog_that_never_empties_holds_what_is_unsent) {
  const std::string reply(1000, 'r');
  const auto value = shared(std::string(20000, 's'));
  for (const bool with_values : {false, true}) {
    Output output;
    output.raw("one byte is always behind");
    const std::size_t before = live_bytes();
    for (int i = 0; i < 20000; ++i) {
      output.raw(reply);
      std::size_t more = reply.size();
      if (with_values) {
        output.bytes(value);
        more += 8 + value->size();
      }
      output.consume(more);
    }
    CHECK_EQUAL(output.size(), 25u);
    CHECK(output.owned() < 300'000);
    CHECK(live_bytes() < before + 600'000);
  }
}

TEST(memory_that_was_lent_comes_back) {
  Output output;
  std::string buffer;
  buffer.reserve(100'000);
  const char* const memory = buffer.data();
  output.lend(std::move(buffer));
  output.raw(std::string(50'000, 'x'));
  CHECK_EQUAL(drain(output).size(), 50'000u);
  const std::string back = output.release();
  CHECK(back.empty());
  CHECK(back.data() == memory);
  CHECK(back.capacity() >= 100'000);
  output.raw("and it goes on");
  CHECK_EQUAL(drain(output), "and it goes on");
}

}  // namespace rdzv::test
