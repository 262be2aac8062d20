// Coordination as clients speak it: replies, pushes between them, and payloads that are none.
#include "check.hpp"
#include "coordination.hpp"
#include "talk.hpp"

namespace rdzv::test {

namespace {

struct Framed : Talk {
  explicit Framed(Room& room, bool in_session = true) : Talk(room) {
    peer().address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 7};
    CHECK_EQUAL(ask(wire::framed_greeting()), wire::framed_welcome());
    if (in_session) {
      CHECK_EQUAL(wire::told(ask(wire::open(1, 1000, "run"))), "#1/0");
    }
  }
  std::string told(std::string_view bytes = "") { return wire::told(ask(bytes)); }
};

// One whole, valid frame of each operation but the opening.
wire::Texts one_of_each() {
  return {wire::put(1, {"a", "1", "b", "2"}),
          wire::put_if(2, "a", 1, {"a", "x"}, wire::kEphemeral),
          wire::list(3, "a"),
          wire::watch(4, 9, "a", 1),
          wire::unwatch(5, 9),
          wire::remove(6, {"a", "b"}),
          wire::remove_if(7, "a", 5, {"b"}),
          wire::keep_alive(8)};
}

std::string text_of(const std::string& reply) { return reply.substr(9); }

}  // namespace

TEST(opening_says_who_and_when_and_where_from) {
  Room room;
  Framed one(room, false), two(room, false);
  CHECK_EQUAL(one.ask(wire::open(5, 1000, "run")), wire::opened(5, 1, 0, "10.0.0.7"));
  one.ask(wire::put(6, {"k", "v"}));
  two.peer().address = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  CHECK_EQUAL(two.ask(wire::open(7, 3'600'000, "run")), wire::opened(7, 2, 1, "fe80::1"));
  CHECK_EQUAL(two.told(wire::open(8, 1000, "run")), "#8/1");
  CHECK_EQUAL(room.counters.coordination[coordination_index(Operation::kOpen)].get(), 3u);
}

TEST(opening_wants_a_time_in_range) {
  Room room;
  for (const std::uint32_t ttl : {0u, 99u, 3'600'001u, 0xffffffffu}) {
    Framed one(room, false);
    const std::string reply = one.ask(wire::open(1, ttl, "run"));
    CHECK_EQUAL(wire::told(reply), "#1/1");
    CHECK(text_of(reply).find(std::to_string(ttl)) != std::string::npos);
    CHECK_EQUAL(one.told(wire::open(2, 100, "run")), "#2/0");
  }
}

TEST(a_server_of_one_run_names_it_to_others) {
  Room room;
  room.server.bind("mine");
  Framed one(room, false);
  CHECK_EQUAL(one.ask(wire::open(1, 1000, "yours")), wire::frame(1, wire::kOtherRun, "mine"));
  CHECK_EQUAL(one.ask(wire::open(2, 1000, "")), wire::frame(2, wire::kOtherRun, "mine"));
  CHECK_EQUAL(one.ask(wire::open(3, 1000, "mine")), wire::opened(3, 1, 0, "10.0.0.7", false));
}

TEST(nothing_works_without_a_session) {
  Room room;
  Framed one(room, false);
  std::uint32_t id = 0;
  for (const std::string& request : one_of_each()) {
    CHECK_EQUAL(one.told(request), "#" + std::to_string(++id) + "/1");
  }
  CHECK_EQUAL(one.refusal(), Refusal::kNone);
  CHECK(room.server.runs->summaries().empty());
}

TEST(put_list_and_delete_answer_with_revisions) {
  Room room;
  Framed one(room);
  CHECK_EQUAL(one.ask(wire::put(2, {"a", "1", "b", "22"})), wire::done(2, 2));
  CHECK_EQUAL(one.ask(wire::put_if(3, "a", 9, {"a", "x"})), wire::failed(3, 1, "1"));
  CHECK_EQUAL(one.ask(wire::put_if(4, "none", 9, {"a", "x"})), wire::failed(4, 0, ""));
  CHECK_EQUAL(one.ask(wire::put_if(5, "a", 1, {"a", "x"})), wire::done(5, 3));
  CHECK_EQUAL(one.ask(wire::list(6, "")),
              wire::frame(6, 0, wire::u64(3) + wire::u32(2) + wire::str("b") + wire::u64(2) + wire::str("22") +
                                    wire::str("a") + wire::u64(3) + wire::str("x")));
  CHECK_EQUAL(one.ask(wire::remove_if(7, "a", 1, {"b"})), wire::failed(7, 3, "x"));
  CHECK_EQUAL(one.ask(wire::remove_if(8, "a", 3, {"b", "c"})), wire::removed(8, 4, 1));
  CHECK_EQUAL(one.ask(wire::list(9, "c")), wire::frame(9, 0, wire::u64(4) + wire::u32(0)));
  CHECK_EQUAL(one.ask(wire::keep_alive(10)), wire::frame(10, 0, ""));
}

TEST(replies_and_pushes_of_a_connection_are_in_order) {
  Room room;
  Framed one(room), two(room);
  CHECK_EQUAL(one.told(wire::put(2, {"k", "1"}) + wire::watch(3, 9, "k") + wire::put(4, {"k", "2"})), "#2/0 #3/0 [9: +k@1=1]");
  CHECK_EQUAL(one.told(), "[9: +k@2=2] #4/0");  // a watch looks at much: others had a turn
  CHECK_EQUAL(two.ask(wire::put(5, {"k", "3"})), wire::done(5, 3));
  CHECK_EQUAL(one.told(), "[9: +k@3=3]");
  // What was left before is said before the answer, and nothing of a watch after it has ended.
  two.feed(wire::put(6, {"k", "4"}));
  one.feed(wire::unwatch(7, 9));
  room.deliver();
  CHECK_EQUAL(one.told(), "[9: +k@4=4] #7/0");
  two.say(wire::put(8, {"k", "5"}));
  CHECK_EQUAL(one.told(), "");
  CHECK_EQUAL(one.told(wire::unwatch(9, 9)), "#9/1");
  CHECK_EQUAL(room.counters.pushes.get(), 4u);
  CHECK_EQUAL(room.counters.events.get(), 4u);
}

TEST(what_cannot_be_known_any_more_has_a_status_of_its_own) {
  Room room;
  Framed one(room);
  CHECK_EQUAL(one.told(wire::watch(2, 1, "", 5)), "#2/4");
  CHECK_EQUAL(one.told(wire::watch(3, 1, "")), "#3/0");
  CHECK_EQUAL(one.told(wire::watch(4, 1, "")), "#4/1");
}

TEST(a_session_that_ends_tells_the_others_at_once) {
  Room room;
  Framed watcher(room);
  watcher.told(wire::watch(2, 1, ""));
  {
    Framed member(room);
    member.ask(wire::put(2, {"m", "v"}, wire::kEphemeral));
    CHECK_EQUAL(watcher.told(), "[1: +m@1=v]");
    member.conversation().end();
    room.deliver();
    CHECK_EQUAL(watcher.told(), "[1: -m@2]");
    CHECK_EQUAL(room.server.runs->summaries()[0].sessions, 1u);
    CHECK_EQUAL(member.told(wire::keep_alive(3)), "#3/1");
  }
  {
    Framed member(room);
    member.ask(wire::put(2, {"m", "v"}, wire::kEphemeral));
  }
  room.deliver();
  CHECK_EQUAL(watcher.told(), "[1: +m@3=v] [1: -m@4]");
  watcher.conversation().end();
  CHECK(room.server.runs->summaries().empty());
}

TEST(a_session_stays_in_our_framing) {
  Room room;
  Framed one(room);
  CHECK_EQUAL(one.told(wire::frame(2, 2, "other") + wire::keep_alive(3)), "#2/1 #3/0");
}

TEST(payloads_that_are_cut_or_too_long_are_refused) {
  auto requests = one_of_each();
  requests.push_back(wire::open(9, 1000, "run"));
  for (const std::string& request : requests) {
    const auto operation = static_cast<std::uint8_t>(request[8]);
    const std::string payload = request.substr(9);
    for (std::size_t size = 0; size < payload.size(); ++size) {
      for (const bool in_session : {true, false}) {
        Room room;
        Framed one(room, in_session);
        one.say(wire::frame(1, operation, payload.substr(0, size)));
        CHECK_EQUAL(one.refusal(), Refusal::kBadFrame);
      }
    }
    Room room;
    Framed one(room);
    one.say(wire::frame(1, operation, payload + "x"));
    CHECK_EQUAL(one.refusal(), Refusal::kBadFrame);
  }
}

TEST(a_refused_request_changes_nothing) {
  Room room;
  Framed one(room), two(room);
  two.say(wire::frame(2, wire::kPut, wire::raw(std::uint8_t{0}) + wire::u32(2) + wire::strs({"a", "1", "b"})));
  CHECK_EQUAL(two.refusal(), Refusal::kBadFrame);
  CHECK_EQUAL(one.ask(wire::list(3, "")), wire::frame(3, 0, wire::u64(0) + wire::u32(0)));
}

TEST(payloads_beyond_the_limits_are_refused_by_name) {
  const Limits limits{.key_bytes = 10, .value_bytes = 20, .keys_per_request = 3, .request_bytes = 200};
  const std::string key(11, 'k'), value(21, 'v');
  const auto refusal = [&](const std::string& request) {
    Room room(limits);
    Framed one(room);
    one.say(request);
    return one.refusal();
  };
  for (const std::string& request : {wire::put(1, {key, ""}), wire::list(1, key), wire::watch(1, 1, key),
                                     wire::remove(1, {key}), wire::put_if(1, key, 0, {}), wire::open(1, 1000, key)}) {
    CHECK_EQUAL(refusal(request), Refusal::kKeyTooLong);
  }
  CHECK_EQUAL(refusal(wire::put(1, {"k", value})), Refusal::kValueTooLong);
  CHECK_EQUAL(refusal(wire::put(1, {"a", "", "b", "", "c", ""})), Refusal::kNone);
  CHECK_EQUAL(refusal(wire::put(1, {"a", "", "b", "", "c", "", "d", ""})), Refusal::kTooManyKeys);
  CHECK_EQUAL(refusal(wire::remove(1, {"a", "b", "c", "d"})), Refusal::kTooManyKeys);
  CHECK_EQUAL(refusal(wire::frame(1, wire::kPut, wire::raw(std::uint8_t{4}) + wire::u32(0))), Refusal::kBadFrame);
  CHECK_EQUAL(refusal(wire::raw(std::uint32_t{201})), Refusal::kRequestTooLong);
  CHECK_EQUAL(refusal(wire::watch(1, 1, "") + wire::watch(2, 2, "") + wire::watch(3, 3, "")), Refusal::kNone);
  // Announced, and not there: nothing is allocated for it.
  CHECK_EQUAL(refusal(wire::frame(1, wire::kPut, wire::raw(std::uint8_t{0}) + wire::u32(3))), Refusal::kBadFrame);
}

TEST(names_that_are_not_utf8_are_refused_and_the_session_goes_on) {
  Room room;
  Framed one(room), watcher(room);
  watcher.ask(wire::watch(2, 1, ""));
  for (const std::string name : {"m/\x94", "\xc3", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\xaf"}) {
    const std::string refused[] = {wire::put(1, {"a", "1", name, "2"}), wire::put_if(1, name, 0, {"a", "1"}),
                                   wire::remove(1, {"a", name}),        wire::remove_if(1, name, 0, {"a"}),
                                   wire::list(1, name),                 wire::watch(1, 7, name)};
    for (const std::string& request : refused) {
      const std::string reply = one.ask(request);
      CHECK_EQUAL(wire::told(reply), "#1/1");
      CHECK(text_of(reply).find("UTF-8") != std::string::npos);
    }
    Framed other(room, false);
    CHECK_EQUAL(other.told(wire::open(1, 1000, name)), "#1/1");
  }
  CHECK_EQUAL(one.refusal(), Refusal::kNone);
  CHECK_EQUAL(one.told(wire::put(3, {"\xe2\x82\xac/\xf0\x9f\x99\x82", std::string("\x94\0", 2)})), "#3/0");
  room.deliver();
  CHECK_EQUAL(watcher.told(),
              std::string("[1: +\xe2\x82\xac/\xf0\x9f\x99\x82@1=\x94\0]", 19));
}

TEST(frames_of_coordination_may_be_cut_anywhere) {
  std::string said = wire::framed_greeting() + wire::open(1, 1000, "run");
  for (const std::string& request : one_of_each()) {
    said += request;
  }
  const auto heard = [&](std::size_t piece) {
    Room room;
    Talk talk(room);
    std::string replies;
    for (std::size_t at = 0; at < said.size(); at += piece) {
      replies += talk.ask(std::string_view(said).substr(at, piece));
      while (talk.conversation().stopped_early()) {
        replies += talk.ask("");
      }
    }
    return replies;
  };
  const std::string whole = heard(said.size());
  CHECK_EQUAL(wire::told(whole.substr(8)), "#1/0 #1/0 #2/0 #3/0 #4/0 [9: +a@3=x] #5/0 #6/0 #7/0 #8/0");
  for (std::size_t piece = 1; piece < 60; ++piece) {
    CHECK_EQUAL(heard(piece), whole);
  }
}

}  // namespace rdzv::test
