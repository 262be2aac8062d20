// Our own framing: statistics, entering a keyspace, and frames that are none.
#include "check.hpp"
#include "requests.hpp"
#include "talk.hpp"

namespace rdzv::test {

namespace {

constexpr std::uint8_t kStatistics = 1, kEnter = 2;
constexpr std::uint8_t kOk = 0, kError = 1;

struct Framed {
  Framed() : talk(room) { CHECK_EQUAL(talk.ask(wire::framed_greeting()), wire::framed_welcome()); }
  Room room;
  Talk talk;
};

}  // namespace

TEST(statistics_come_from_the_server) {
  Framed framed;
  CHECK_EQUAL(framed.talk.ask(wire::frame(77, kStatistics, "")), wire::frame(77, kOk, FakeServer::kStatistics));
  CHECK_EQUAL(framed.room.counters.frames.get(), 1u);
  CHECK_EQUAL(framed.room.server.asked, 1);
}

TEST(frames_may_be_cut_anywhere) {
  const std::string said = wire::framed_greeting() + wire::frame(1, kEnter, "none such") +
                           wire::frame(2, 99, "payload") + wire::frame(3, kEnter, "other") + wire::add("k", 3);
  const std::string heard = wire::framed_welcome() + wire::frame(1, kError, "there is no keyspace 'none such'") +
                            wire::frame(2, kError, "unknown operation 99") + wire::frame(3, kOk, "") + wire::i64(3);
  for (std::size_t piece = 1; piece <= said.size(); ++piece) {
    Room room;
    Talk talk(room);
    std::string replies;
    for (std::size_t at = 0; at < said.size(); at += piece) {
      replies += talk.ask(std::string_view(said).substr(at, piece));
    }
    CHECK_EQUAL(replies, heard);
  }
}

TEST(enter_changes_the_keyspace) {
  Framed framed;
  framed.room.keyspace->set("k", "main's", framed.room.wakes);
  framed.room.server.other->set("k", "other's", framed.room.wakes);
  CHECK_EQUAL(framed.room.keyspace->connections.load(), 1u);
  CHECK_EQUAL(framed.talk.ask(wire::frame(1, kEnter, "other")), wire::frame(1, kOk, ""));
  CHECK_EQUAL(framed.talk.ask(wire::get("k")), wire::text("other's"));
  CHECK(&framed.talk.conversation().keyspace() == framed.room.server.other.get());
  CHECK_EQUAL(framed.room.keyspace->connections.load(), 0u);
  CHECK_EQUAL(framed.room.server.other->connections.load(), 1u);
  // From here on it is a store client like others: a frame is read as a request, here as CHECK with far too many keys.
  framed.talk.say(wire::frame(2, kStatistics, ""));
  CHECK_EQUAL(framed.talk.refusal(), Refusal::kTooManyKeys);
  CHECK_EQUAL(framed.room.server.asked, 0);
}

TEST(waits_after_enter_are_of_that_keyspace) {
  Framed framed;
  framed.talk.say(wire::frame(1, kEnter, "other") + wire::wait({"k"}));
  framed.talk.hear();
  framed.room.keyspace->set("k", "v", framed.room.wakes);
  framed.room.deliver();
  CHECK_EQUAL(framed.talk.hear(), "");
  framed.room.server.other->set("k", "v", framed.room.wakes);
  framed.room.deliver();
  CHECK_EQUAL(framed.talk.hear(), wire::stop_waiting());
}

TEST(frames_of_impossible_size_are_refused_at_once) {
  for (const std::uint32_t size : {0u, 4u, kMaxFrame + 1, 0x7fffffffu, 0xffffffffu}) {
    Framed framed;
    framed.talk.say(wire::raw(size));
    CHECK_EQUAL(framed.talk.refusal(), Refusal::kBadFrame);
  }
  Framed framed;
  framed.talk.say(wire::raw(kMaxFrame));
  CHECK_EQUAL(framed.talk.refusal(), Refusal::kNone);
  framed.talk.say(std::string(kMaxFrame - 1, '\0'));
  CHECK_EQUAL(framed.room.counters.frames.get(), 0u);
  framed.talk.say(std::string(1, '\0'));
  CHECK_EQUAL(framed.talk.hear(), wire::frame(0, kError, "unknown operation 0"));
}

TEST(store_requests_are_no_frames) {
  Framed framed;
  framed.talk.say(wire::greeting() + wire::set("k", "v"));
  CHECK_EQUAL(framed.talk.refusal(), Refusal::kBadFrame);
  CHECK_EQUAL(framed.room.keyspace->size(), 0);
}

TEST(another_version_of_the_framing_is_refused) {
  Room room;
  Talk talk(room);
  talk.say("\xF7RDZV" + wire::raw(std::uint32_t{2}));
  CHECK_EQUAL(talk.refusal(), Refusal::kNotAClient);
  CHECK_EQUAL(talk.hear(), "");
}

TEST(statistics_give_others_a_turn_each_time) {
  Framed framed;
  std::string said;
  for (std::uint32_t i = 0; i < 100; ++i) {
    said += wire::frame(i, kStatistics, "");
  }
  framed.talk.say(said);
  CHECK(framed.room.server.asked < 5);
  for (int turns = 0; !framed.talk.left().empty() && turns < 300; ++turns) {
    framed.talk.feed("");
  }
  CHECK_EQUAL(framed.room.server.asked, 100);
}

}  // namespace rdzv::test
