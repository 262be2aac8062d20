// One client's conversation: transcripts of the wire, and what is refused when.
#include "rdzv/conversation.hpp"

#include "check.hpp"
#include "memory.hpp"
#include "requests.hpp"
#include "talk.hpp"

namespace rdzv::test {

namespace {

// "2f 6b |01 00*7" -> bytes: two hexadecimal digits each, "*7": seven times the byte before it in all.
std::string hex(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '*') {
      bytes.append(static_cast<std::size_t>(text[++i] - '1'), bytes.back());
    } else if (text[i] != ' ' && text[i] != '|') {
      bytes += static_cast<char>(std::stoi(std::string(text.substr(i++, 2)), nullptr, 16));
    }
  }
  return bytes;
}

struct Line {
  const char* what;
  const char* client;
  const char* server;
};

// Recorded between torch 2.13's client and its own server.
constexpr Line kTranscript[] = {
    {"validate", "00 ce f7 85 3c", ""},
    {"ping", "0d 0d 22 00 00", "0d 22 00 00"},
    {"add init/", "04 |05 00*7 |69 6e 69 74 2f |01 00*7", "01 00*7"},
    {"set k", "01 |02 00*7|2f 6b |01 00*7|76", ""},
    {"wait k", "06 |01 00*7 |02 00*7 2f 6b", "00"},
    {"get k", "03 |02 00*7 2f 6b", "01 00*7|76"},
    {"add a 5", "04 |02 00*7 2f 61|05 00*7", "05 00*7"},
    {"add a -7", "04 |02 00*7 2f 61|f9 ff*7", "fe ff*7"},
    {"get a", "03 |02 00*7 2f 61", "02 00*7|2d 32"},
    {"check k zz", "05 |02 00*7 |02 00*7 2f 6b|03 00*7 2f 7a 7a", "01"},
    {"check k", "05 |01 00*7 |02 00*7 2f 6b", "00"},
    {"check nothing", "05 |00*8", "00"},
    {"wait nope", "06 |01 00*7|05 00*7 2f 6e 6f 70 65", ""},
    {"ping while waiting", "0d 01 02 03 04", "01 02 03 04"},
    {"cancel", "0c", "01"},
    {"cancel when not waiting", "0c", "01"},
    {"num_keys", "07", "03 00*7"},
    {"delete k", "08 |02 00*7 2f 6b", "01 00*7"},
    {"delete k again", "08 |02 00*7 2f 6b", "00*8"},
    {"compare_set creates", "02 |03 00*7 2f 63 73|00*8|01 00*7 41", "01 00*7|41"},
    {"compare_set exists", "02 |03 00*7 2f 63 73|00*8|01 00*7 42", "01 00*7|41"},
    {"compare_set absent", "02 |04 00*7 2f 6d 69 73|01 00*7 58|01 00*7 43", "01 00*7|58"},
    {"append", "09 |03 00*7 2f 61 70|02 00*7 70 6f", ""},
    {"get appended", "03 |03 00*7 2f 61 70", "02 00*7|70 6f"},
    {"multi_set", "0b |02 00*7|03 00*7 2f 6d 31|01 00*7 78|03 00*7 2f 6d 32|02 00*7 79 79", ""},
    {"multi_get", "0a |02 00*7|03 00*7 2f 6d 31|03 00*7 2f 6d 32", "01 00*7 78 02 00*7 79 79"},
    {"multi_get nothing", "0a |00*8", ""},
    {"queue_push", "0e |02 00*7 2f 71|03 00*7 6f 6e 65", ""},
    {"queue_push", "0e |02 00*7 2f 71|03 00*7 74 77 6f", ""},
    {"queue_len", "10 |02 00*7 2f 71", "02 00*7"},
    {"queue_pop", "0f |02 00*7 2f 71", "02 00*7 |03 00*7 6f 6e 65"},
    {"queue_pop", "0f |02 00*7 2f 71", "01 00*7 |03 00*7 74 77 6f"},
    {"queue_pop empty", "0f |02 00*7 2f 71", "00*8"},
    {"barrier alone", "12 |03 00*7 2f 62 32|02 00*7", ""},
    {"cancel", "0c", "01"},
    {"barrier, the second", "12 |03 00*7 2f 62 32|02 00*7", "00"},
    {"get absent", "03 |02 00*7 2f 7a", "00*8"},
};

Refusal refusal(const std::string& bytes, const Limits& limits = Limits()) {
  Room room(limits);
  Talk talk(room);
  talk.say(bytes);
  return talk.refusal();
}

}  // namespace

TEST(torchs_transcript_line_by_line) {
  Room room;
  Talk talk(room);
  for (const Line& line : kTranscript) {
    if (const std::string heard = talk.ask(hex(line.client)); heard != hex(line.server)) {
      CHECK_EQUAL(heard, hex(line.server));
      CHECK_EQUAL(std::string(line.what), "");
    }
  }
  CHECK_EQUAL(talk.refusal(), Refusal::kNone);
  CHECK_EQUAL(talk.peer().pid.load(), 0x04030201u);
}

TEST(torchs_transcript_cut_everywhere) {
  std::string said, heard;
  for (const Line& line : kTranscript) {
    said += hex(line.client);
    heard += hex(line.server);
  }
  for (std::size_t piece = 1; piece < 40; ++piece) {
    Room room;
    Talk talk(room);
    std::string replies;
    for (std::size_t at = 0; at < said.size(); at += piece) {
      replies += talk.ask(std::string_view(said).substr(at, piece));
    }
    CHECK(replies == heard);
    CHECK_EQUAL(talk.refusal(), Refusal::kNone);
  }
}

TEST(list_keys_has_a_count_and_the_keys) {
  Room room;
  Talk talk(room);
  talk.say(wire::greeting() + wire::set("/b", "1") + wire::set("init/", "1") + wire::queue_push("/q", "x"));
  const std::string a = wire::text("/b"), b = wire::text("init/");
  const std::string heard = talk.ask(wire::list_keys());
  CHECK(heard == wire::i64(2) + a + b || heard == wire::i64(2) + b + a);
}

TEST(whoever_is_no_client_is_refused_with_the_first_wrong_byte) {
  for (const std::string& right : {wire::greeting(), wire::framed_greeting()}) {
    for (std::size_t i = 0; i < right.size(); ++i) {
      std::string wrong = right.substr(0, i + 1);
      wrong[i] = static_cast<char>(wrong[i] ^ 0x20);
      CHECK_EQUAL(refusal(wrong), Refusal::kNotAClient);
      CHECK_EQUAL(refusal(right.substr(0, i)), Refusal::kNone);
    }
  }
  CHECK_EQUAL(refusal("GET / HTTP/1.1\r\n"), Refusal::kNotAClient);
  CHECK_EQUAL(refusal("\x16\x03\x01"), Refusal::kNotAClient);
}

TEST(nothing_runs_before_the_greeting) {
  for (const std::string& request : wire::one_of_each()) {
    if (request[0] == 0) {
      continue;
    }
    Room room;
    Talk talk(room);
    CHECK_EQUAL(talk.ask(request), "");
    CHECK_EQUAL(talk.ask(wire::greeting() + request), "");
    CHECK_EQUAL(talk.refusal(), Refusal::kNotAClient);
    CHECK_EQUAL(room.keyspace->size(), 0);
    CHECK_EQUAL(room.requests(static_cast<Query>(request[0])), 0u);
  }
  Room room;
  Talk talk(room);
  talk.say(wire::op(0) + wire::raw(std::uint32_t{0x3C85F7CF}) + wire::set("k", "v"));
  CHECK_EQUAL(talk.refusal(), Refusal::kNotAClient);
  CHECK_EQUAL(room.keyspace->size(), 0);
}

TEST(the_greeting_may_come_in_pieces_and_only_once) {
  Room room;
  Talk talk(room);
  for (const char byte : wire::greeting()) {
    CHECK(!talk.conversation().greeted());
    talk.say(std::string(1, byte));
  }
  CHECK(talk.conversation().greeted());
  CHECK_EQUAL(talk.ask(wire::add("k", 1)), wire::i64(1));
  CHECK_EQUAL(refusal(wire::greeting() + wire::greeting()), Refusal::kUnknownRequest);
}

TEST(offences_are_told_apart) {
  constexpr Limits limits{.key_bytes = 9, .value_bytes = 20, .keys_per_request = 3, .request_bytes = 80};
  const auto after_greeting = [&](const std::string& bytes) { return refusal(wire::greeting() + bytes, limits); };
  CHECK_EQUAL(after_greeting(wire::op(19)), Refusal::kUnknownRequest);
  CHECK_EQUAL(after_greeting(wire::op(3) + wire::u64(10)), Refusal::kKeyTooLong);
  CHECK_EQUAL(after_greeting(wire::op(1) + wire::text("k") + wire::u64(21)), Refusal::kValueTooLong);
  CHECK_EQUAL(after_greeting(wire::op(5) + wire::u64(4)), Refusal::kTooManyKeys);
  CHECK_EQUAL(after_greeting(wire::multi_set({"a", std::string(20, 'v'), "b", std::string(20, 'v')})),
              Refusal::kRequestTooLong);
  CHECK_EQUAL(after_greeting(wire::set("k", "text") + wire::add("k", 1)), Refusal::kNotANumber);
  CHECK_EQUAL(after_greeting(wire::set("k", "text") + wire::barrier("k", 1)), Refusal::kNotANumber);
}

TEST(requests_before_an_offence_are_run_and_none_after_it) {
  Room room;
  Talk talk(room);
  CHECK_EQUAL(talk.ask(wire::greeting() + wire::add("k", 1) + wire::op(200) + wire::add("k", 1)), wire::i64(1));
  CHECK_EQUAL(talk.refusal(), Refusal::kUnknownRequest);
  CHECK_EQUAL(talk.ask(wire::add("k", 1)), "");
  CHECK_EQUAL(room.requests(Query::kAdd), 1u);
}

TEST(announced_sizes_are_not_allocated) {
  Room room;
  Talk talk(room);
  talk.say(wire::greeting());
  const std::size_t before = live_bytes();
  talk.say(wire::op(1) + wire::text("k") + wire::u64(8u << 20));
  CHECK(live_bytes() < before + 2000);
  Talk many(room);
  many.say(wire::greeting() + wire::op(11) + wire::u64(131072));
  CHECK(live_bytes() < before + 4000);
}

TEST(a_split_multi_set_is_applied_once) {
  Room room;
  Talk talk(room);
  talk.say(wire::greeting());
  const std::string request = wire::multi_set({"a", "1", "b", "2"});
  talk.say(request.substr(0, request.size() - 1));
  CHECK_EQUAL(room.keyspace->size(), 0);  // torch's server has set "a" by now
  talk.say(request.substr(request.size() - 1));
  CHECK_EQUAL(room.keyspace->size(), 2);
  CHECK_EQUAL(room.requests(Query::kMultiSet), 1u);
}

}  // namespace rdzv::test
