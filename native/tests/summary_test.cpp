// What a keyspace says about itself: counts, bytes, who waits for what since when.
#include "check.hpp"
#include "store_kit.hpp"

namespace rdzv::test {

TEST(summary_counts_bytes_as_they_come_and_go) {
  Kit kit;
  const auto bytes = [&] { return kit.summary().bytes; };
  kit.set("key", "12345");
  CHECK_EQUAL(bytes(), 8u);
  kit.set("key", "1");
  CHECK_EQUAL(bytes(), 4u);
  kit.append("key", "23");
  CHECK_EQUAL(bytes(), 6u);
  kit.add("key", -120);
  CHECK_EQUAL(bytes(), 4u);
  (void)kit.get("key");
  kit.compare_set("key", "3", std::string(10000, 'x'));
  CHECK_EQUAL(bytes(), 10003u);
  (void)kit.get("key");  // now it is shared with a reply
  kit.append("key", "y");
  CHECK_EQUAL(bytes(), 10004u);
  CHECK(kit.store.remove("key"));
  CHECK_EQUAL(bytes(), 0u);
  kit.push("q", "123");
  const std::size_t one = bytes();
  kit.push("q", "4567");
  CHECK_EQUAL(bytes(), one + 4);
  kit.pop("q");
  kit.pop("q");
  CHECK_EQUAL(bytes(), 0u);
  CHECK_EQUAL(kit.summary().queues, 0u);
}

TEST(summary_says_who_waits_for_what_since_when) {
  Kit kit;
  kit.peer.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 7};
  kit.peer.port = 40122;
  kit.peer.pid = 4711;
  Wakes waiters;
  for (int i = 0; i < 15; ++i) {
    waiters.push_back(kit.wait({"popular"}, 1000 + i));
  }
  waiters.push_back(kit.wait({"rare", "there"}, 500));
  kit.set("there", "v");
  waiters.push_back(kit.barrier("counter", 2).waiter);
  const auto summary = kit.summary();
  CHECK_EQUAL(summary.keys, 2u);
  CHECK_EQUAL(summary.waited_keys, 3u);
  REQUIRE_EQUAL(summary.waited.size(), 3u);  // longest first
  CHECK_EQUAL(summary.waited[0].key, "counter");
  CHECK_EQUAL(summary.waited[0].waiters, 1u);
  CHECK_EQUAL(summary.waited[1].key, "rare");
  CHECK_EQUAL(summary.waited[1].since_ms, 500);
  CHECK_EQUAL(summary.waited[2].key, "popular");
  CHECK_EQUAL(summary.waited[2].waiters, 15u);
  REQUIRE_EQUAL(summary.waited[2].clients.size(), 10u);
  CHECK_EQUAL(summary.waited[2].clients[0].since_ms, 1000);
  CHECK_EQUAL(summary.waited[2].clients[0].endpoint, "10.0.0.7:40122");
  CHECK_EQUAL(summary.waited[2].clients[0].pid, 4711u);
  for (const auto& waiter : waiters) {
    kit.store.cancel(*waiter);
  }
  CHECK(kit.summary().waited.empty());
}

TEST(summary_lists_the_keys_that_have_been_waited_for_longest) {
  Kit kit;
  Wakes waiters;
  for (int i = 0; i < 200; ++i) {
    waiters.push_back(kit.wait({"key-" + std::to_string(i)}, (i * 77) % 200));
  }
  const auto summary = kit.store.summary(5, 1);
  CHECK_EQUAL(summary.waited_keys, 200u);
  REQUIRE_EQUAL(summary.waited.size(), 5u);
  for (int i = 0; i < 5; ++i) {
    CHECK_EQUAL(summary.waited[static_cast<std::size_t>(i)].since_ms, i);
  }
  CHECK(kit.store.summary(0, 1).waited.empty());
  CHECK(kit.store.summary(5, 0).waited[0].clients.empty());
  for (const auto& waiter : waiters) {
    kit.store.cancel(*waiter);
  }
}

TEST(summary_knows_waits_that_end_in_any_order) {
  Kit kit;
  const auto waited = [&] { return kit.summary().waited_keys; };
  // All of one shard's keys are likely to meet here.
  Wakes waiters;
  for (int i = 0; i < 500; ++i) {
    waiters.push_back(kit.wait({"key-" + std::to_string(i), "all"}));
    waiters.push_back(kit.barrier("key-" + std::to_string(i), 3).waiter);
  }
  CHECK_EQUAL(waited(), 501u);
  for (int i = 0; i < 500; i += 2) {
    kit.add("key-" + std::to_string(i), 5);  // ends the barrier there
  }
  CHECK_EQUAL(waited(), 251u);
  for (std::size_t i = 1; i < waiters.size(); i += 2) {
    kit.store.cancel(*waiters[i]);
  }
  CHECK_EQUAL(waited(), 1u);
  kit.set("all", "v");
  CHECK_EQUAL(waited(), 0u);
}

TEST(summary_of_a_key_with_waits_and_a_barrier_counts_both) {
  Kit kit;
  const auto barrier = kit.barrier("k", 2);
  CHECK(kit.store.remove("k"));
  const auto wait = kit.wait({"k"});
  const auto summary = kit.summary();
  REQUIRE_EQUAL(summary.waited.size(), 1u);
  CHECK_EQUAL(summary.waited[0].waiters, 2u);
  kit.store.cancel(*wait);
  CHECK_EQUAL(kit.summary().waited_keys, 1u);
  kit.store.cancel(*barrier.waiter);
  CHECK_EQUAL(kit.summary().waited_keys, 0u);
}

}  // namespace rdzv::test
