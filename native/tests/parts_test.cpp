// Small parts: addresses as text, hashes of keys, the event log, the mailbox.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <set>
#include <thread>

#include "check.hpp"
#include "random.hpp"
#include "rdzv/event_log.hpp"
#include "rdzv/hash.hpp"
#include "rdzv/mailbox.hpp"
#include "rdzv/peer.hpp"

namespace rdzv::test {

namespace {

struct Pipe {
  Pipe() {
    if (pipe2(ends, O_NONBLOCK) != 0) {
      throw std::runtime_error("pipe");
    }
  }
  ~Pipe() { close(ends[0]); }
  std::string read_all() const {
    std::string all(1 << 20, '\0');
    const ssize_t got = read(ends[0], all.data(), all.size());
    return all.substr(0, got > 0 ? static_cast<std::size_t>(got) : 0);
  }
  int ends[2];
};

bool readable(int fd) {
  pollfd ready{fd, POLLIN, 0};
  return poll(&ready, 1, 0) == 1;
}

}  // namespace

TEST(addresses_are_written_without_looking_them_up) {
  Peer peer;
  peer.port = 40122;
  CHECK_EQUAL(peer.endpoint(), "[::]:40122");
  peer.address = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  CHECK_EQUAL(peer.endpoint(), "[fe80::1]:40122");
  peer.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 255, 1};
  CHECK_EQUAL(peer.endpoint(), "192.168.255.1:40122");
}

TEST(equal_keys_have_equal_hashes_wherever_they_lie) {
  Random random(8);
  for (std::size_t size = 0; size < 100; ++size) {
    const std::string key = random.bytes(size);
    const std::size_t hash = KeyHasher::hash(key);
    for (std::size_t offset = 0; offset < 9; ++offset) {
      const std::string moved = std::string(offset, 'x') + key;
      CHECK_EQUAL(KeyHasher::hash(std::string_view(moved).substr(offset)), hash);
    }
  }
}

TEST(keys_that_differ_little_have_different_hashes) {
  std::set<std::size_t> hashes;
  std::size_t keys = 0;
  for (std::size_t size = 0; size < 70; ++size) {
    const std::string zeros(size, '\0');
    hashes.insert(KeyHasher::hash(zeros));
    ++keys;
    for (std::size_t at = 0; at < size; ++at) {
      for (int bit = 0; bit < 8; ++bit) {
        std::string key = zeros;
        key[at] = static_cast<char>(1 << bit);
        hashes.insert(KeyHasher::hash(key));
        ++keys;
      }
    }
  }
  CHECK_EQUAL(hashes.size(), keys);
}

TEST(usual_keys_spread_over_the_shards) {
  std::size_t in_shard[64] = {};
  for (int i = 0; i < 6400; ++i) {
    ++in_shard[KeyHasher::hash("/default_pg/0//rank_" + std::to_string(i)) >> 58];
  }
  for (const std::size_t keys : in_shard) {
    CHECK(keys > 40 && keys < 180);  // 100 are expected, 10 is the standard deviation
  }
}

TEST(the_log_withholds_a_flood_and_says_so) {
  Pipe pipe;
  EventLog log{UniqueFd(pipe.ends[1])};
  for (int i = 0; i < 25; ++i) {
    log.write("line " + std::to_string(i), 1'000'000);
  }
  const std::string first = pipe.read_all();
  CHECK(first.find("line 9\n") != std::string::npos);
  CHECK(first.find("line 10") == std::string::npos);
  log.write("later", 1'001'000);
  const std::string second = pipe.read_all();
  CHECK(second.find("later") == 0);
  CHECK(second.find("15 more") != std::string::npos);
  log.write("last", 1'001'001);
  CHECK_EQUAL(pipe.read_all(), "last\n");
}

TEST(the_log_never_blocks) {
  Pipe pipe;
  fcntl(pipe.ends[1], F_SETFL, 0);  // blocking, as a caller may hand it over
  EventLog log{UniqueFd(pipe.ends[1])};
  for (int i = 0; i < 3000; ++i) {
    log.write(std::string(100, 'x'), i * 1000);
  }
  CHECK(!pipe.read_all().empty());
  log.write("after", 4'000'000);
  CHECK(pipe.read_all().find("after (") == 0);
  EventLog none{UniqueFd()};
  none.write("nowhere", 0);
}

TEST(the_mailbox_is_readable_while_it_is_full) {
  Mailbox mailbox;
  CHECK(!readable(mailbox.event_fd()));
  CHECK(!mailbox.full());
  int ran = 0;
  mailbox.post([&] { ran = ran * 10 + 1; });
  mailbox.post([&] { ran = ran * 10 + 2; });
  Wakes posted(3);
  mailbox.post(std::move(posted));
  mailbox.post(Wakes(2));
  CHECK(readable(mailbox.event_fd()));
  CHECK(mailbox.full());
  CHECK_EQUAL(mailbox.size(), 7u);
  Wakes wakes;
  Pushes pushes;
  std::vector<Mailbox::Task> tasks;
  mailbox.take(wakes, pushes, tasks);
  for (const auto& task : tasks) {
    task();
  }
  CHECK_EQUAL(ran, 12);
  CHECK_EQUAL(wakes.size(), 5u);
  CHECK(!readable(mailbox.event_fd()));
  CHECK(!mailbox.full());
}

TEST(no_mail_is_lost_between_threads) {
  constexpr int kThreads = 4, kEach = 5000;
  Mailbox mailbox;
  int ran = 0;  // by this thread alone
  std::vector<std::thread> senders;
  for (int i = 0; i < kThreads; ++i) {
    senders.emplace_back([&] {
      for (int j = 0; j < kEach; ++j) {
        mailbox.post([&] { ++ran; });
      }
    });
  }
  while (ran < kThreads * kEach) {
    pollfd ready{mailbox.event_fd(), POLLIN, 0};
    REQUIRE(poll(&ready, 1, 60'000) == 1);  // else a signal was lost
    Wakes wakes;
    Pushes pushes;
    std::vector<Mailbox::Task> tasks;
    mailbox.take(wakes, pushes, tasks);
    for (const auto& task : tasks) {
      task();
    }
  }
  for (std::thread& sender : senders) {
    sender.join();
  }
}

}  // namespace rdzv::test
