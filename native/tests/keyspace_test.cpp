// What the operations on values and queues do to one keyspace.
#include "check.hpp"
#include "memory.hpp"
#include "store_kit.hpp"

namespace rdzv::test {

TEST(values_are_set_and_got) {
  Kit kit;
  CHECK_EQUAL(kit.get("k"), "");
  kit.set("k", "v");
  CHECK_EQUAL(kit.get("k"), "v");
  kit.set("k", std::string("\0\xff", 2));
  CHECK_EQUAL(kit.get("k"), std::string("\0\xff", 2));
  kit.set("", "the empty key");
  CHECK_EQUAL(kit.get(""), "the empty key");
  kit.set("empty", "");
  CHECK(kit.check({"empty", "", "k"}));
  CHECK_EQUAL(kit.store.size(), 3);
}

TEST(append_creates_and_extends) {
  Kit kit;
  kit.append("k", "po");
  kit.append("k", "");
  kit.append("k", "tato");
  CHECK_EQUAL(kit.get("k"), "potato");
  kit.append("empty", "");
  CHECK(kit.check({"empty"}));
}

TEST(compare_set_as_torch_has_it) {
  Kit kit;
  CHECK_EQUAL(kit.compare_set("k", "", "A"), "A");  // created
  CHECK_EQUAL(kit.compare_set("k", "", "B"), "A");  // there already
  CHECK_EQUAL(kit.compare_set("k", "X", "C"), "A");
  CHECK_EQUAL(kit.compare_set("k", "A", "D"), "D");
  CHECK_EQUAL(kit.get("k"), "D");
  CHECK_EQUAL(kit.compare_set("missing", "X", "C"), "X");  // torch echoes what was expected
  CHECK(!kit.check({"missing"}));
  CHECK_EQUAL(kit.store.size(), 1);
  kit.set("empty", "");
  CHECK_EQUAL(kit.compare_set("empty", "", "now"), "now");
}

TEST(add_counts_in_decimal_text) {
  Kit kit;
  CHECK_EQUAL(kit.add("a", 5).value(), 5);
  CHECK_EQUAL(kit.add("a", -7).value(), -2);
  CHECK_EQUAL(kit.get("a"), "-2");
  kit.set("text", " +41 and more");
  CHECK_EQUAL(kit.add("text", 1).value(), 42);
  CHECK_EQUAL(kit.get("text"), "42");
  CHECK_EQUAL(kit.add("big", INT64_MAX).value(), INT64_MAX);
  CHECK_EQUAL(kit.add("big", 1).value(), INT64_MIN);
}

TEST(add_to_what_is_no_number_changes_nothing) {
  Kit kit;
  for (const char* const value : {"", "x", "-", "99999999999999999999"}) {
    kit.set("k", value);
    CHECK(!kit.add("k", 1));
    CHECK_EQUAL(kit.get("k"), value);
    CHECK(!kit.barrier("k", 1).number);
    CHECK_EQUAL(kit.get("k"), value);
  }
  CHECK(kit.woke_nobody());
}

TEST(remove_says_whether_there_was_a_value) {
  Kit kit;
  kit.set("k", "v");
  CHECK(kit.store.remove("k"));
  CHECK(!kit.store.remove("k"));
  CHECK(!kit.check({"k"}));
  CHECK_EQUAL(kit.add("k", 3).value(), 3);  // nothing of the old value is left
  kit.push("q", "item");
  CHECK(!kit.store.remove("q"));
  CHECK_EQUAL(kit.store.queue_size("q"), 1);
}

TEST(many_keys_at_once) {
  Kit kit;
  kit.multi_set({"m1", "x", "m2", "yy", "m1", "last"});
  CHECK_EQUAL(kit.multi_get({"m1", "none", "m2", "m1"}), wire::texts({"last", "", "yy", "last"}));
  CHECK_EQUAL(kit.multi_get({}), "");
  kit.multi_set({});
  CHECK(kit.check({}));
  CHECK(kit.check({"m1", "m2", "m1"}));
  CHECK(!kit.check({"m1", "none"}));
  CHECK_EQUAL(kit.store.size(), 2);
}

TEST(list_and_size_are_of_values_only) {
  Kit kit;
  CHECK(kit.list().empty());
  Names expected;
  for (int i = 100; i < 400; ++i) {
    expected.push_back("key-" + std::to_string(i));
    kit.set(expected.back(), "v");
  }
  kit.push("queue", "item");
  kit.wait({"waited for"});
  CHECK(kit.list() == expected);
  CHECK_EQUAL(kit.store.size(), 300);
}

TEST(queues_are_first_in_first_out) {
  Kit kit;
  CHECK_EQUAL(kit.pop("q"), "0");
  CHECK_EQUAL(kit.store.queue_size("q"), 0);
  kit.push("q", "one");
  kit.push("q", "");
  kit.push("q", "three");
  CHECK_EQUAL(kit.store.queue_size("q"), 3);
  CHECK(kit.check({"q"}));
  CHECK_EQUAL(kit.pop("q"), "3:one");
  CHECK_EQUAL(kit.pop("q"), "2:");
  CHECK_EQUAL(kit.pop("q"), "1:three");
  CHECK_EQUAL(kit.pop("q"), "0");
  CHECK(!kit.check({"q"}));
}

TEST(a_value_and_a_queue_of_one_name_are_apart) {
  Kit kit;
  kit.set("k", "value");
  kit.push("k", "item");
  CHECK_EQUAL(kit.get("k"), "value");
  CHECK(kit.store.remove("k"));
  CHECK(kit.check({"k"}));
  CHECK_EQUAL(kit.get("k"), "");
  CHECK_EQUAL(kit.pop("k"), "1:item");
  CHECK(!kit.check({"k"}));
}

TEST(wipe_forgets_everything) {
  Kit kit;
  for (int i = 0; i < 200; ++i) {
    kit.set("key-" + std::to_string(i), std::string(5000, 'v'));
    kit.push("queue-" + std::to_string(i), "item");
  }
  kit.store.wipe();
  CHECK_EQUAL(kit.store.size(), 0);
  CHECK(kit.list().empty());
  CHECK_EQUAL(kit.store.queue_size("queue-7"), 0);
  const auto summary = kit.summary();
  CHECK_EQUAL(summary.keys + summary.queues + summary.bytes, 0u);
  CHECK_EQUAL(kit.compare_set("key-7", "", "again"), "again");
}

TEST(multi_get_gives_up_when_the_reply_is_too_long) {
  Kit kit;
  kit.set("k", std::string(1000, 'v'));
  Output reply;
  CHECK(kit.store.multi_get(Kit::views({"k", "k"}), reply, 2 * 1008));
  CHECK(!kit.store.multi_get(Kit::views(Names(1000, "k")), reply, 3 * 1008));
  CHECK(reply.size() <= 4 * 1008);
}

TEST(keys_that_come_and_go_leave_no_memory_behind) {
  Kit kit;
  const auto churn = [&](int from) {
    for (int i = from; i < from + 2000; ++i) {
      const std::string key = "a key of some length that no small string holds " + std::to_string(i);
      kit.set(key, "v");
      CHECK(kit.store.remove(key));
      kit.push(key, "item");
      kit.pop(key);
      kit.store.cancel(*kit.wait({key, key + "'"}));
      (void)kit.get(key + "?");
      kit.compare_set(key + "?", "not there", "x");
      const auto arrival = kit.barrier(key, 9);
      CHECK(kit.store.remove(key));
      kit.store.cancel(*arrival.waiter);
      kit.waiters.clear();
    }
  };
  churn(0);
  const std::size_t before = live_bytes();
  churn(2000);
  churn(4000);
  CHECK(live_bytes() < before + 64 * 1024);
}

}  // namespace rdzv::test
