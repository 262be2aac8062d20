// Values and those who read them: a reply on its way keeps the bytes that it was promised.
#include "rdzv/key_table.hpp"

#include "check.hpp"
#include "memory.hpp"
#include "store_kit.hpp"

namespace rdzv::test {

namespace {

const std::string kLarge(3 * Value::kShareFrom, 'a');

}  // namespace

TEST(replies_keep_what_they_were_promised) {
  for (const std::size_t size : {std::size_t{10}, Value::kShareFrom - 1, Value::kShareFrom, kLarge.size()}) {
    const std::string first(size, '1'), second(size + 5, '2');
    Value value;
    value.assign(first);
    Output before, after_append, after_assign, after_clear;
    value.write(before);
    value.append("+");
    value.write(after_append);
    value.assign(second);
    value.write(after_assign);
    value.clear();
    value.write(after_clear);
    CHECK(drain(before) == wire::text(first));
    CHECK(drain(after_append) == wire::text(first + "+"));
    CHECK(drain(after_assign) == wire::text(second));
    CHECK(drain(after_clear) == wire::text(""));
  }
}

TEST(replies_outlive_the_key) {
  Kit kit;
  kit.set("k", kLarge);
  Output removed, wiped;
  kit.store.get("k", removed);
  kit.store.get("k", wiped);
  CHECK(kit.store.remove("k"));
  kit.set("k", "small");
  kit.store.wipe();
  CHECK(drain(removed) == wire::text(kLarge));
  CHECK(drain(wiped) == wire::text(kLarge));
}

TEST(readers_of_a_large_value_share_it) {
  Kit kit;
  kit.set("k", kLarge);
  std::vector<Output> replies(1000);
  const std::size_t before = live_bytes();
  for (Output& reply : replies) {
    kit.store.get("k", reply);
  }
  CHECK(live_bytes() < before + 1000 * 500);
  const Names four(4, "k");
  kit.store.multi_get(Kit::views(four), replies[0], ~std::size_t{0});
  CHECK(drain(replies[0]) == wire::texts(Names(5, kLarge)));
}

TEST(compare_set_reads_large_values_too) {
  Kit kit;
  kit.set("k", kLarge);
  Output lost, won;
  kit.store.compare_set("k", "wrong", "x", lost, kit.wakes);
  kit.store.compare_set("k", kLarge, "x", won, kit.wakes);
  CHECK(drain(lost) == wire::text(kLarge));
  CHECK(drain(won) == wire::text("x"));
}

TEST(old_values_that_only_replies_hold_are_counted) {
  const std::uint64_t before = SharedText::detached_bytes();
  const auto counted = [&] { return SharedText::detached_bytes() - before; };
  {
    Value value;
    value.assign(kLarge);
    Output first, second, third;
    value.write(first);
    value.write(second);
    CHECK_EQUAL(counted(), 0u);
    value.assign("new");
    CHECK_EQUAL(counted(), kLarge.size());
    value.append(kLarge);
    value.write(third);
    drain(first);
    CHECK_EQUAL(counted(), kLarge.size());
    drain(second);
    CHECK_EQUAL(counted(), 0u);
    value.append("!");
    CHECK_EQUAL(counted(), kLarge.size() + 3);
    value.clear();  // nobody read this one
    CHECK_EQUAL(counted(), kLarge.size() + 3);
  }
  CHECK_EQUAL(counted(), 0u);
}

TEST(a_removed_value_gives_back_its_memory_though_the_key_stays) {
  Kit kit;
  const std::string huge(4 << 20, 'v');
  kit.barrier("k", 100);  // keeps the entry
  const std::size_t before = live_bytes();
  kit.set("k", huge);
  CHECK(live_bytes() > before + huge.size() / 2);
  CHECK(kit.store.remove("k"));
  CHECK(live_bytes() < before + 10'000);
  kit.set("k", huge);
  kit.store.wipe();
  CHECK(live_bytes() < before + 10'000);
}

}  // namespace rdzv::test
