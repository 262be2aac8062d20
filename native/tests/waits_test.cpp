// Who is woken when: WAIT, BARRIER, queues, cancel, wipe. One thread.
#include "check.hpp"
#include "store_kit.hpp"

namespace rdzv::test {

TEST(a_wait_for_what_is_there_does_not_wait) {
  Kit kit;
  kit.set("value", "");
  kit.push("queue", "item");
  CHECK(kit.wait({}) == nullptr);
  CHECK(kit.wait({"value", "queue", "value"}) == nullptr);
  CHECK(kit.summary().waited.empty());
}

TEST(every_way_to_create_a_key_wakes) {
  const auto wakes_with = [](auto create) {
    Kit kit;
    const auto waiter = kit.wait({"k"});
    REQUIRE(waiter != nullptr);
    create(kit);
    CHECK(kit.woke(waiter));
    create(kit);
    CHECK(kit.woke_nobody());
    CHECK(kit.summary().waited.empty());
  };
  wakes_with([](Kit& kit) { kit.set("k", "v"); });
  wakes_with([](Kit& kit) { kit.append("k", "1"); });
  wakes_with([](Kit& kit) { kit.add("k", 1); });
  wakes_with([](Kit& kit) { kit.compare_set("k", "", "v"); });
  wakes_with([](Kit& kit) { kit.multi_set({"other", "x", "k", "v"}); });
  wakes_with([](Kit& kit) { kit.push("k", "item"); });
  wakes_with([](Kit& kit) { kit.barrier("k", 1); });
}

TEST(what_does_not_create_the_key_wakes_nobody) {
  Kit kit;
  const auto waiter = kit.wait({"k"});
  kit.compare_set("k", "expected", "desired");  // torch's server wakes here, though the key is still missing
  (void)kit.get("k");
  (void)kit.multi_get({"k"});
  (void)kit.pop("k");
  CHECK(!kit.store.remove("k"));
  CHECK(!kit.check({"k"}));
  kit.set("k2", "v");
  kit.store.wipe();
  CHECK(kit.woke_nobody());
  CHECK_EQUAL(kit.summary().waited.size(), 1u);
  kit.store.cancel(*waiter);
}

TEST(a_wait_for_many_ends_with_the_last) {
  Kit kit;
  kit.set("there", "v");
  const auto waiter = kit.wait({"a", "there", "b", "c", "b"});
  kit.set("c", "v");
  kit.set("a", "v");
  CHECK(kit.woke_nobody());
  kit.set("b", "v");  // twice in the list
  CHECK(kit.woke(waiter));
}

TEST(a_key_that_came_has_come_even_if_it_goes_again) {
  Kit kit;
  const auto waiter = kit.wait({"a", "b"});
  kit.set("a", "v");
  CHECK(kit.store.remove("a"));
  kit.set("b", "v");
  CHECK(kit.woke(waiter));
}

TEST(all_who_wait_for_a_key_are_woken_at_once) {
  Kit kit;
  Wakes waiters;
  for (int i = 0; i < 50; ++i) {
    waiters.push_back(kit.wait({"k"}));
  }
  kit.set("k", "v");
  CHECK(kit.wakes == waiters);  // first come, first served
}

TEST(a_pushed_item_wakes_only_who_has_waited_longest) {
  Kit kit;
  const auto first = kit.wait({"q"}), second = kit.wait({"q"}), third = kit.wait({"q"});
  kit.push("q", "one");
  CHECK(kit.woke(first));
  kit.store.cancel(*second);
  kit.push("q", "two");
  CHECK(kit.woke(third));
  kit.push("q", "three");
  CHECK(kit.woke_nobody());
}

TEST(cancelled_waits_are_not_woken) {
  Kit kit;
  const auto waiter = kit.wait({"a", "b"});
  const auto other = kit.wait({"b"});
  kit.set("a", "v");
  kit.store.cancel(*waiter);
  kit.store.cancel(*waiter);  // harmless
  kit.set("b", "v");
  CHECK(kit.woke(other));
  CHECK(kit.summary().waited.empty());
  kit.store.cancel(*other);
}

TEST(a_barrier_ends_when_all_have_arrived) {
  Kit kit;
  const auto first = kit.barrier("b", 3), second = kit.barrier("b", 3);
  REQUIRE(first.waiter && second.waiter);
  CHECK(kit.woke_nobody());
  CHECK_EQUAL(kit.get("b"), "2");
  CHECK(kit.barrier("b", 3).waiter == nullptr);
  CHECK(kit.wakes == Wakes({first.waiter, second.waiter}));
  kit.wakes.clear();
  CHECK(kit.barrier("b", 3).waiter == nullptr);  // torch never resets it: a second use passes at once
  CHECK_EQUAL(kit.get("b"), "4");
}

TEST(barriers_of_one_do_not_wait) {
  Kit kit;
  for (const std::int64_t world_size : {std::int64_t{1}, std::int64_t{0}, std::int64_t{-5}, INT64_MIN}) {
    CHECK(kit.barrier("b" + std::to_string(world_size), world_size).waiter == nullptr);
  }
}

TEST(barriers_of_several_sizes_share_a_counter) {
  Kit kit;
  const auto four = kit.barrier("b", 4), two_late = kit.barrier("b", 3);
  CHECK(kit.woke_nobody());
  CHECK(kit.barrier("b", 5).waiter != nullptr);
  CHECK(kit.woke(two_late.waiter));  // of 3
  CHECK(kit.barrier("b", 9).waiter != nullptr);
  CHECK(kit.woke(four.waiter));
}

TEST(who_left_a_barrier_stays_counted) {
  Kit kit;
  const auto gone = kit.barrier("b", 2);
  kit.store.cancel(*gone.waiter);
  CHECK(kit.barrier("b", 2).waiter == nullptr);
  CHECK(kit.woke_nobody());
}

TEST(the_counter_of_a_barrier_is_a_key_like_others) {
  Kit kit;
  const auto wait = kit.wait({"b"});
  const auto arrival = kit.barrier("b", 10);
  CHECK(kit.woke(wait));  // the first arrival creates it
  kit.add("b", 0);        // torch's server ends the barrier here
  CHECK(kit.woke_nobody());
  kit.set("b", "nonsense");
  CHECK(kit.woke_nobody());
  kit.set("b", "9");
  CHECK(kit.woke_nobody());
  kit.set("b", "10");
  CHECK(kit.woke(arrival.waiter));
}

TEST(waits_outlive_wipe) {
  Kit kit;
  const auto wait = kit.wait({"k"});
  const auto arrival = kit.barrier("b", 2);
  kit.push("q", "item");
  kit.store.wipe();
  CHECK(kit.woke_nobody());
  CHECK_EQUAL(kit.summary().waited.size(), 2u);
  kit.set("k", "v");
  CHECK(kit.woke(wait));
  CHECK(kit.barrier("b", 2).waiter != nullptr);  // counts from 1 again
  CHECK(kit.woke_nobody());
  CHECK(kit.barrier("b", 2).waiter == nullptr);
  CHECK_EQUAL(std::exchange(kit.wakes, {}).size(), 2u);
  const auto queue = kit.wait({"q"});
  kit.push("q", "item");
  CHECK(kit.woke(queue));
}

TEST(waits_outlive_the_removal_of_what_shares_their_key) {
  Kit kit;
  const auto barrier = kit.barrier("b", 3);
  CHECK(kit.store.remove("b"));
  const auto wait = kit.wait({"b"});
  kit.push("b", "item");
  CHECK(kit.woke(wait));
  kit.pop("b");
  kit.set("b", "3");
  CHECK(kit.woke(barrier.waiter));
}

TEST(a_pushed_item_wakes_one_even_if_the_first_waits_for_more) {
  Kit kit;
  const auto busy = kit.wait({"q", "other"}), second = kit.wait({"q"}), third = kit.wait({"q"});
  kit.push("q", "one");
  CHECK(kit.woke(second));
  kit.set("other", "v");
  CHECK(kit.woke(busy));  // the queue's key has come for it
  kit.push("q", "two");
  CHECK(kit.woke(third));
}

}  // namespace rdzv::test
