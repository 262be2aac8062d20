// Conversations that wait for each other; replies that are not read; order.
#include "check.hpp"
#include "requests.hpp"
#include "talk.hpp"

namespace rdzv::test {

namespace {

struct Two {
  explicit Two(const Limits& limits = Limits()) : room(limits), a(room), b(room) {
    a.say(wire::greeting());
    b.say(wire::greeting());
  }
  std::size_t waited_keys() { return room.keyspace->summary(1, 1).waited_keys; }
  Room room;
  Talk a, b;
};

}  // namespace

TEST(one_client_wakes_another) {
  Two two;
  two.a.say(wire::wait({"x", "y"}));
  two.b.say(wire::set("x", "1"));
  CHECK_EQUAL(two.a.hear(), "");
  two.b.say(wire::add("y", 1));
  CHECK_EQUAL(two.a.hear(), wire::stop_waiting());
  CHECK_EQUAL(two.b.hear(), wire::i64(1));
  two.b.say(wire::add("y", 1));
  CHECK_EQUAL(two.a.hear(), "");
}

TEST(a_barrier_of_two) {
  Two two;
  CHECK_EQUAL(two.a.ask(wire::barrier("b", 2)), "");
  CHECK_EQUAL(two.b.ask(wire::barrier("b", 2)), wire::stop_waiting());
  CHECK_EQUAL(two.a.hear(), wire::stop_waiting());
}

TEST(a_cancelled_wait_is_answered_once) {
  Two two;
  two.a.say(wire::wait({"k"}));
  CHECK_EQUAL(two.a.ask(wire::cancel_wait()), wire::wait_canceled());
  two.b.say(wire::set("k", "v"));
  CHECK_EQUAL(two.a.hear(), "");
}

TEST(a_wake_on_its_way_when_the_wait_is_cancelled_is_dropped) {
  Two two;
  two.a.say(wire::wait({"k"}));
  two.b.feed(wire::set("k", "v"));  // woken, not told yet
  two.a.feed(wire::cancel_wait());
  two.room.deliver();
  CHECK_EQUAL(two.a.hear(), wire::wait_canceled());
}

TEST(a_wake_that_was_told_is_answered_before_the_cancel) {
  Two two;
  two.a.say(wire::wait({"k"}));
  two.b.say(wire::set("k", "v"));
  two.a.say(wire::cancel_wait());
  CHECK_EQUAL(two.a.hear(), wire::stop_waiting() + wire::wait_canceled());
}

TEST(a_client_that_leaves_leaves_no_waits) {
  Two two;
  {
    Talk gone(two.room);
    gone.say(wire::greeting() + wire::wait({"k", "l"}) + wire::barrier("b", 5) + wire::wait({"m"}));
    CHECK_EQUAL(two.waited_keys(), 4u);
    two.b.feed(wire::set("m", "v"));  // a wake for it is on its way
  }
  CHECK_EQUAL(two.waited_keys(), 0u);
  two.room.deliver();
  two.b.say(wire::set("k", "v") + wire::set("l", "v"));
  CHECK_EQUAL(two.room.keyspace->connections.load(), 2u);
}

TEST(a_refused_client_holds_its_waits_until_its_conversation_ends) {
  Two two;
  two.a.say(wire::wait({"k", "l"}) + wire::op(99));
  CHECK_EQUAL(two.a.refusal(), Refusal::kUnknownRequest);
  two.b.say(wire::set("k", "v"));  // must not harm
  CHECK_EQUAL(two.waited_keys(), 1u);
  two.a.conversation().end();
  CHECK_EQUAL(two.waited_keys(), 0u);
}

TEST(a_client_that_wakes_itself_is_answered_in_the_order_of_its_requests) {
  const std::string said = wire::wait({"k"}) + wire::ping(1) + wire::add("k", 5) + wire::ping(2);
  const std::string heard = wire::raw(1) + wire::i64(5) + wire::stop_waiting() + wire::raw(2);
  Two whole, cut;
  CHECK_EQUAL(whole.a.ask(said), heard);
  std::string replies;
  for (const char byte : said) {
    replies += cut.a.ask(std::string(1, byte));
  }
  CHECK_EQUAL(replies, heard);
}

TEST(several_waits_of_one_client_are_answered_one_by_one) {
  Two two;
  two.a.say(wire::wait({"x"}) + wire::wait({"y"}) + wire::wait({"x", "y"}) + wire::barrier("z", 2));
  two.b.say(wire::set("y", "1"));
  CHECK_EQUAL(two.a.hear(), wire::stop_waiting());
  two.b.say(wire::set("x", "1"));
  CHECK_EQUAL(two.a.hear(), wire::stop_waiting() + wire::stop_waiting());
  two.b.say(wire::barrier("z", 2));
  CHECK_EQUAL(two.a.hear(), wire::stop_waiting());
  CHECK_EQUAL(two.waited_keys(), 0u);
}

TEST(many_waits_of_one_client_are_limited_in_sum) {
  Two two(Limits{.keys_per_request = 10});
  two.a.say(wire::wait({"1", "2", "3", "4", "5", "6"}) + wire::wait({"7", "8", "9"}) + wire::barrier("b", 2));
  CHECK_EQUAL(two.a.refusal(), Refusal::kNone);
  two.b.say(wire::set("7", "v") + wire::set("8", "v") + wire::set("9", "v"));
  CHECK_EQUAL(two.a.hear(), wire::stop_waiting());
  two.a.say(wire::wait({"x", "y", "z"}));  // there is room again
  CHECK_EQUAL(two.a.refusal(), Refusal::kNone);
  two.a.say(wire::barrier("c", 2));
  CHECK_EQUAL(two.a.refusal(), Refusal::kTooManyWaits);
  CHECK_EQUAL(two.b.ask(wire::get("c")), wire::text(""));  // it was not counted
  two.b.say(wire::cancel_wait());
  CHECK_EQUAL(two.b.ask(wire::barrier("b", 2)), wire::wait_canceled() + wire::stop_waiting());
}

TEST(as_many_waits_as_allowed_are_linear_work) {
  // 131,072 waits of one client for one key: to look through all of them for each would take minutes.
  Two two;
  std::string said;
  for (int i = 0; i < 131072; ++i) {
    said += wire::wait({"k"});
  }
  two.a.say(said);
  CHECK_EQUAL(two.a.refusal(), Refusal::kNone);
  two.b.say(wire::set("k", "v"));
  CHECK_EQUAL(two.a.hear().size(), 131072u);
}

TEST(requests_wait_while_replies_are_not_read) {
  Two two;
  two.b.say(wire::set("k", std::string(100'000, 'v')));
  std::string said, expected;
  for (int i = 0; i < 100; ++i) {
    said += wire::get("k");
    expected += wire::text(std::string(100'000, 'v'));
  }
  two.a.say(said);
  CHECK(two.a.output().size() >= Conversation::kHighWater);
  CHECK(two.a.output().size() < Conversation::kHighWater + 200'000);
  CHECK(!two.a.left().empty());
  CHECK(two.a.conversation().stopped_early());
  CHECK_EQUAL(two.a.feed(""), 0u);
  std::string heard = two.a.hear();
  while (!two.a.left().empty()) {
    CHECK(two.a.feed("") > 0);
    heard += two.a.hear();
  }
  CHECK(heard == expected);
}

TEST(wakes_reach_a_client_that_does_not_read) {
  Two two;
  two.b.say(wire::set("k", std::string(Conversation::kHighWater, 'v')));
  two.a.say(wire::wait({"w"}) + wire::get("k") + wire::ping(1));
  two.b.say(wire::set("w", "v"));
  CHECK_EQUAL(two.a.hear(), wire::text(std::string(Conversation::kHighWater, 'v')) + wire::stop_waiting());
  two.a.feed("");
  CHECK_EQUAL(two.a.hear(), wire::raw(1));
}

TEST(a_multi_get_that_no_memory_could_hold_is_refused) {
  Two two(Limits{.output_bytes = 1 << 20});
  two.b.say(wire::set("k", std::string(10'000, 'v')));
  two.a.say(wire::multi_get(wire::Texts(100'000, "k")));  // 1 GB
  CHECK_EQUAL(two.a.refusal(), Refusal::kUnreadReplies);
  CHECK(two.a.output().owned() < 2u << 20);
}

TEST(requests_that_take_long_give_others_a_turn) {
  Two two;
  two.b.say(wire::set("k", "v"));
  std::string said;
  for (int i = 0; i < 1000; ++i) {
    said += wire::list_keys();
  }
  two.a.say(said);
  CHECK(two.a.left().size() > 900);  // it has not run all of them
  CHECK(two.a.conversation().stopped_early());
  std::size_t turns = 0;
  for (; !two.a.left().empty() && turns < 3000; ++turns) {
    two.a.feed("");
  }
  CHECK_EQUAL(two.a.hear().size(), 1000u * (8 + 9));
}

}  // namespace rdzv::test
