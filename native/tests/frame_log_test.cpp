// Frames that outlive a connection, and keys that are asked for ahead.
#include "check.hpp"
#include "rdzv/frame_log.hpp"
#include "rdzv/read_ahead.hpp"

namespace rdzv::test {

namespace {

std::string taken(FrameLog& log) {
  Output output;
  log.take(output);
  std::string text;
  while (!output.empty()) {
    iovec parts[4];
    std::size_t size = 0;
    for (std::size_t i = 0, count = output.gather(parts, 4); i < count; ++i) {
      text.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
      size += parts[i].iov_len;
    }
    output.consume(size);
  }
  return text;
}

std::string asked(ReadAhead& ahead, const std::string& key) {
  const auto range = ahead.next(key);
  return range.first < range.end ? std::to_string(range.first) + ".." + std::to_string(range.end) : "";
}

}  // namespace

TEST(frames_are_sent_once_while_the_connection_lasts) {
  FrameLog log;
  log.add("a");
  log.add("b");
  CHECK_EQUAL(taken(log), "ab");
  log.add("c");
  CHECK_EQUAL(taken(log), "c");
  CHECK_EQUAL(taken(log), "");
  CHECK_EQUAL(log.bytes(), 3u);
}

TEST(frames_that_the_other_side_has_are_forgotten) {
  FrameLog log;
  log.add("a");
  log.add("bb");
  taken(log);
  CHECK(log.acknowledge(1));
  CHECK_EQUAL(log.bytes(), 2u);
  CHECK(log.acknowledge(0));  // an older word, which comes late
  CHECK(!log.acknowledge(3));
  CHECK(log.acknowledge(2));
  CHECK_EQUAL(log.kept(), 0u);
}

TEST(what_was_not_sent_cannot_be_acknowledged) {
  FrameLog log;
  log.add("a");
  CHECK(!log.acknowledge(1));
}

TEST(a_new_connection_is_sent_exactly_what_is_missing) {
  FrameLog log;
  for (const char* frame : {"a", "b", "c"}) {
    log.add(frame);
  }
  taken(log);
  log.acknowledge(1);
  log.add("d");
  CHECK(log.rewind(2));
  CHECK_EQUAL(taken(log), "cd");
  CHECK(!log.rewind(1));  // forgotten: the other side has said that it has it
  CHECK(!log.rewind(5));
  CHECK(log.rewind(4));
  CHECK_EQUAL(taken(log), "");
}

TEST(large_frames_are_shared_with_the_output) {
  FrameLog log;
  const std::string large(100'000, 'x');
  log.add("a");
  log.add(large);
  log.add("b");
  CHECK(taken(log) == "a" + large + "b");
}

TEST(keys_in_turn_are_asked_for_ahead) {
  ReadAhead ahead;
  CHECK_EQUAL(asked(ahead, "/pg/0/0"), "");
  CHECK_EQUAL(asked(ahead, "/pg/0/1"), "");
  CHECK_EQUAL(asked(ahead, "/pg/0/2"), "3..4");
  CHECK_EQUAL(asked(ahead, "/pg/0/2"), "");  // another rank is there, too
  CHECK_EQUAL(asked(ahead, "/pg/0/4"), "5..6");  // a rank leaves out its own
}

TEST(more_is_asked_for_the_longer_it_goes_on_and_nothing_twice) {
  ReadAhead ahead;
  std::uint64_t next = 0, most = 0;
  for (std::uint64_t n = 0; n < 2000; ++n) {
    const auto range = ahead.next("/" + std::to_string(n));
    if (range.first < range.end) {
      CHECK(range.first >= next && range.first > n);
      most = std::max(most, range.end - n - 1);
      next = range.end;
    }
    if (n > 2) {
      CHECK(next > n);  // the reader does not overtake it
    }
  }
  CHECK_EQUAL(most, 32u);
}

TEST(keys_that_are_not_in_turn_are_left_alone) {
  ReadAhead ahead;
  for (const char* key : {"", "a", "7", "/x", "/00", "/01", "/02", "/03", "/1", "/5", "/9", "/13", "/99999999999999999999"}) {
    CHECK_EQUAL(asked(ahead, key), "");
  }
}

}  // namespace rdzv::test
