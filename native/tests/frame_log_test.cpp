// What one side of a trunk keeps until the other has it: each frame is sent once, and again exactly where it was lost.
#include "rdzv/frame_log.hpp"

#include <string>
#include <vector>

#include "check.hpp"
#include "random.hpp"

namespace rdzv::test {
namespace {

std::string sent(FrameLog& log) {
  Output output;
  log.take(output);
  std::string text;
  while (!output.empty()) {
    iovec part;
    output.gather(&part, 1);
    text.append(static_cast<const char*>(part.iov_base), part.iov_len);
    output.consume(part.iov_len);
  }
  return text;
}

TEST(frames_are_sent_once_and_kept_until_they_are_acknowledged) {
  FrameLog log;
  log.add("a");
  log.add("bc");
  CHECK(sent(log) == "abc");
  CHECK(sent(log).empty());
  CHECK(log.bytes() == 3);
  CHECK(log.acknowledge(1));
  CHECK(log.bytes() == 2);
  CHECK(log.acknowledge(0));  // an older word
  CHECK(log.kept() == 1);
  log.add("d");
  CHECK(sent(log) == "d");
  CHECK(log.acknowledge(3));
  CHECK(log.kept() == 0);
}

TEST(nobody_has_what_was_not_sent) {
  FrameLog log;
  log.add("a");
  CHECK(!log.acknowledge(1));
  CHECK(!log.rewind(2));
  CHECK(sent(log) == "a");
  CHECK(!log.acknowledge(2));
  CHECK(log.acknowledge(1));
  CHECK(!log.rewind(0));  // it is no longer there
}

TEST(large_frames_are_sent_again_too) {
  FrameLog log;
  const std::string large(100'000, 'x');
  log.add("a");
  log.add(large);
  CHECK(sent(log) == "a" + large);
  CHECK(log.rewind(1));
  CHECK(sent(log) == large);
}

// A receiver that is cut off again and again, at any frame, gets all frames in order and none twice.
TEST(breaks_at_random_lose_and_repeat_nothing) {
  Random random(11);
  FrameLog log;
  std::string all, received;
  std::uint64_t count = 0;  // frames that have come
  for (int turn = 0; turn < 20'000; ++turn) {
    if (random.below(2) == 0) {
      const std::string frame(1, static_cast<char>('a' + random.below(26)));
      log.add(frame);
      all += frame;
    }
    if (random.below(3) == 0) {
      std::string flight = sent(log);
      if (random.below(4) == 0) {
        flight.resize(random.below(flight.size() + 1));  // the rest is lost
        received += flight;
        count += flight.size();
        CHECK(log.rewind(count));
      } else {
        received += flight;
        count += flight.size();
      }
    }
    if (random.below(5) == 0) {
      CHECK(log.acknowledge(count));
    }
    CHECK(log.bytes() == log.kept());
  }
  received += sent(log);
  CHECK(received == all);
}

}  // namespace
}  // namespace rdzv::test
