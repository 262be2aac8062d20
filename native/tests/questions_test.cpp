// Which requests have to wait until what was sent before them is read.
#include "check.hpp"
#include "requests.hpp"
#include "talk.hpp"

namespace rdzv::test {

namespace {


const std::string kCheck = wire::check({"k"}), kYes(1, '\0'), kNo(1, '\1');

struct One {
  Room room;
  Talk talk{room};

  One() { talk.feed(wire::greeting()); }
};

}  // namespace

TEST(writes_and_waits_are_no_questions) {
  One one;
  CHECK(one.talk.feed(wire::wait({"k"}) + wire::set("k", "v"), Questions::kLater) > 0);
  one.room.deliver();
  CHECK_EQUAL(one.talk.hear(), kYes);
  CHECK(!one.talk.conversation().stopped_early());
}

TEST(what_is_before_a_question_is_done_and_what_is_behind_it_waits) {
  One one;
  one.talk.feed(wire::set("k", "v") + kCheck + wire::set("later", "v"), Questions::kLater);
  CHECK_EQUAL(one.room.keyspace->size(), 1);
  CHECK_EQUAL(one.talk.hear(), "");
  CHECK(one.talk.conversation().held_back());
  CHECK(!one.talk.conversation().asks_alone());
  one.talk.feed("", Questions::kNow);
  CHECK_EQUAL(one.talk.hear(), kYes);
  CHECK_EQUAL(one.room.keyspace->size(), 2);
  CHECK(!one.talk.conversation().held_back());
}

TEST(a_question_that_is_all_that_has_come_need_not_wait) {
  One one;
  one.talk.feed(kCheck.substr(0, 3), Questions::kIfAlone);
  one.talk.feed(kCheck.substr(3), Questions::kIfAlone);
  CHECK_EQUAL(one.talk.hear(), kNo);
  one.talk.feed(kCheck, Questions::kLater);
  CHECK_EQUAL(one.talk.hear(), "");
  CHECK(one.talk.conversation().asks_alone());
  one.talk.feed("", Questions::kNow);
  CHECK_EQUAL(one.talk.hear(), kNo);
}

TEST(a_question_with_something_before_or_behind_it_waits) {
  for (const std::string& all : {wire::set("other", "v") + kCheck, kCheck + kCheck, kCheck + kCheck.substr(0, 1)}) {
    One one;
    one.talk.feed(all, Questions::kIfAlone);
    CHECK_EQUAL(one.talk.hear(), "");
    CHECK(one.talk.conversation().held_back());
    CHECK(!one.talk.conversation().asks_alone());
  }
}

}  // namespace rdzv::test
