// Connections that need a token: what strangers are served, which is nothing, and what a proof is good for.
#include "rdzv/gate.hpp"

#include "check.hpp"
#include "coordination.hpp"
#include "guarded.hpp"
#include "requests.hpp"

namespace rdzv::test {

namespace {

const std::string kRefusedBytes = verdict_bytes(Verdict::kRefused);

std::string bytes_of(const Digest& digest) { return std::string(view(digest)); }

// Everything that a client may begin with and that is not the handshake.
std::vector<std::string> greetings() {
  std::vector<std::string> all{wire::framed_greeting() + wire::open(1, 1000, "run"), wire::framed_greeting(), "GET / HTTP/1.1"};
  for (int query = 0; query <= 18; ++query) {
    all.push_back(wire::greeting() + wire::op(query));
    all.push_back(wire::op(query));
  }
  for (std::uint8_t operation = 1; operation < 24; ++operation) {
    all.push_back(wire::framed_greeting() + wire::frame(1, operation, "run"));
  }
  return all;
}

}  // namespace

TEST(hmac_is_that_of_rfc_4231) {
  load_crypto("");
  const auto digest = hmac_sha256("Jefe", "what do ya want for nothing?");
  REQUIRE(digest.has_value());
  CHECK_EQUAL(bytes_of(*digest).substr(0, 4), std::string("\x5b\xdc\xc1\x46", 4));
  CHECK_EQUAL(bytes_of(*digest).substr(28), std::string("\x64\xec\x38\x43", 4));
  CHECK(same_secret("abc", "abc"));
  CHECK(!same_secret("abc", "abd"));
  CHECK(!same_secret("abc", "ab"));
}

TEST(who_proves_the_token_is_served_what_it_was_proved_for) {
  GuardedRoom guarded;
  Talk store(guarded.room, true), session(guarded.room, true), status(guarded.room, true);
  REQUIRE(guarded.prove(store, Purpose::kStore, "run"));
  CHECK(!store.conversation().greeted());
  CHECK_EQUAL(store.ask(wire::greeting() + wire::add("k", 2)), wire::i64(2));
  REQUIRE(guarded.prove(session, Purpose::kSession, "run"));
  CHECK_EQUAL(session.ask(wire::framed_greeting()), wire::framed_welcome());
  const std::string refused = "the token was proved for something else on this connection";
  CHECK_EQUAL(session.ask(wire::frame(1, 1, "")), wire::frame(1, 1, refused));
  CHECK_EQUAL(session.ask(wire::frame(2, 2, "other")), wire::frame(2, 1, refused));
  CHECK_EQUAL(session.ask(wire::frame(3, 10, "")), wire::frame(3, 1, refused));
  CHECK_EQUAL(session.ask(wire::open(4, 1000, "another")), wire::frame(4, 1, "the token was proved for another run"));
  CHECK_EQUAL(static_cast<int>(session.ask(wire::open(5, 1000, "run"))[8]), 0);
  REQUIRE(guarded.prove(status, Purpose::kStatus, ""));
  status.ask(wire::framed_greeting());
  CHECK_EQUAL(status.ask(wire::frame(1, 1, "")), wire::frame(1, 0, FakeServer::kStatistics));
  CHECK_EQUAL(status.ask(wire::open(2, 1000, "run")), wire::frame(2, 1, refused));
}

TEST(a_connection_for_one_protocol_does_not_speak_the_other) {
  GuardedRoom guarded;
  Talk store(guarded.room, true), session(guarded.room, true);
  REQUIRE(guarded.prove(store, Purpose::kStore, "run"));
  CHECK_EQUAL(store.ask(wire::framed_greeting()), "");
  CHECK_EQUAL(store.refusal(), Refusal::kWrongToken);
  REQUIRE(guarded.prove(session, Purpose::kSession, "run"));
  session.say(wire::greeting() + wire::set("k", "v"));
  CHECK_EQUAL(session.refusal(), Refusal::kWrongToken);
  CHECK_EQUAL(guarded.room.keyspace->summary(1, 1).keys, 0u);
}

TEST(nothing_else_is_looked_at_before_the_proof) {
  for (const std::string& said : greetings()) {
    for (const std::size_t piece : {said.size(), std::size_t{1}}) {
      GuardedRoom guarded;
      Talk talk(guarded.room, true);
      std::string heard;
      for (std::size_t at = 0; at < said.size() && talk.refusal() == Refusal::kNone; at += piece) {
        heard += talk.ask(std::string_view(said).substr(at, piece));
      }
      const bool framed = said[0] == '\xF7';
      CHECK_EQUAL(talk.refusal(), framed || said[0] == '\0' ? Refusal::kNoToken : Refusal::kNotAClient);
      CHECK_EQUAL(heard, framed ? verdict_bytes(Verdict::kTokenNeeded) : "");
      CHECK(!talk.conversation().greeted());
      CHECK_EQUAL(guarded.room.counters.frames.get(), 0u);
      CHECK_EQUAL(guarded.room.requests(Query::kValidate), 0u);
    }
  }
}

TEST(a_wrong_proof_a_replayed_and_a_reflected_one) {
  GuardedRoom guarded;
  const Introduction mine = GuardedRoom::introduction(Purpose::kStore, "run");
  const auto attempt = [&](auto said) {
    Talk talk(guarded.room, true);
    const std::string challenge = talk.ask(mine.bytes());
    const std::string answer = talk.ask(std::string("\1", 1) + said(GuardedRoom::challenge(challenge)) + wire::greeting() +
                                        wire::set("k", "v"));
    CHECK_EQUAL(answer, kRefusedBytes);
    CHECK_EQUAL(talk.refusal(), Refusal::kWrongToken);
  };
  Talk first(guarded.room, true);
  const Digest then = GuardedRoom::challenge(first.ask(mine.bytes()));
  const std::string old = bytes_of(*proof(guarded.key, Side::kClient, mine, then));
  attempt([&](const Digest&) { return std::string(kDigestSize, '\0'); });
  attempt([&](const Digest& now) { return bytes_of(*proof(std::string(kDigestSize, 'x'), Side::kClient, mine, now)); });
  attempt([&](const Digest&) { return old; });
  attempt([&](const Digest& now) { return bytes_of(*proof(guarded.key, Side::kServer, mine, now)); });
  attempt([&](const Digest& now) { return bytes_of(now); });
  for (const Purpose purpose : {Purpose::kSession, Purpose::kTrunk, Purpose::kStatus}) {
    attempt([&](const Digest& now) {
      return bytes_of(*proof(guarded.key, Side::kClient, {purpose, mine.nonce, mine.run}, now));
    });
  }
  attempt([&](const Digest& now) {
    return bytes_of(*proof(guarded.key, Side::kClient, {Purpose::kStore, mine.nonce, "ru"}, now));
  });
  CHECK_EQUAL(guarded.room.keyspace->summary(1, 1).keys, 0u);
}

TEST(the_handshake_may_be_cut_anywhere) {
  GuardedRoom guarded;
  const Introduction mine = GuardedRoom::introduction(Purpose::kStore, "run");
  for (const std::size_t piece : {1u, 2u, 31u}) {
    Talk talk(guarded.room, true);
    const auto say = [&](const std::string& said) {
      std::string heard;
      for (std::size_t at = 0; at < said.size(); at += piece) {
        CHECK_EQUAL(heard, "");
        heard = talk.ask(std::string_view(said).substr(at, piece));
      }
      return heard;
    };
    const Digest nonce = GuardedRoom::challenge(say(mine.bytes()));
    CHECK_EQUAL(say(*proofs({guarded.key}, mine, nonce)).size(), kAcceptedSize);
    CHECK_EQUAL(talk.ask(wire::greeting() + wire::add("k", 1)).size(), 8u);
    CHECK_EQUAL(talk.left(), "");
    talk.ask(wire::set("k", "gone"));
    talk.ask(wire::op(8) + wire::text("k"));
  }
}

TEST(what_is_no_handshake_is_refused_with_the_byte_that_shows_it) {
  const std::string head = wire::introduction_head();
  const std::string nonce(kDigestSize, 'n');
  for (const auto& [said, why] : {std::pair{std::string("\xF8XYZ"), ""},
                                  {head.substr(0, 5) + wire::raw(std::uint32_t{9}), "other version"},
                                  {head + '\0' + nonce + std::string(2, '\0'), ""},
                                  {head + '\5' + nonce + std::string(2, '\0'), ""},
                                  {head + '\1' + nonce + wire::raw(std::uint16_t{1025}), ""}}) {
    GuardedRoom guarded;
    Talk talk(guarded.room, true);
    CHECK_EQUAL(talk.ask(said), *why == '\0' ? "" : verdict_bytes(Verdict::kOtherVersion));
    CHECK_EQUAL(talk.refusal(), Refusal::kNotAClient);
  }
  for (const char count : {'\0', '\3', '\xFF'}) {
    GuardedRoom guarded;
    Talk talk(guarded.room, true);
    talk.ask(GuardedRoom::introduction(Purpose::kStore, "run").bytes());
    talk.say(std::string(1, count));
    CHECK_EQUAL(talk.refusal(), Refusal::kWrongToken);
  }
}

TEST(tokens_open_the_runs_of_their_patterns) {
  GuardedRoom guarded;
  guarded.accept({{"team", guarded.key, "team-*", false}});
  const auto answered = [&](Purpose purpose, const std::string& run) {
    Talk talk(guarded.room, true);
    const Introduction mine = GuardedRoom::introduction(purpose, run);
    const Digest nonce = GuardedRoom::challenge(talk.ask(mine.bytes()));
    return verdict(talk.ask(*proofs({guarded.key}, mine, nonce)));
  };
  CHECK(answered(Purpose::kSession, "team-a") == Verdict::kGoOn);
  CHECK(answered(Purpose::kSession, "other") == Verdict::kNotOpened);
  CHECK(answered(Purpose::kSession, std::string("team-\0x", 7)) == Verdict::kNotOpened);
  CHECK(answered(Purpose::kStore, "team-a") == Verdict::kNotOpened);
  CHECK(answered(Purpose::kTrunk, "team-a") == Verdict::kNotOpened);
  CHECK(answered(Purpose::kStatus, "") == Verdict::kNotOpened);
}

TEST(two_tokens_at_once_and_a_run_of_another) {
  GuardedRoom guarded;
  const std::string fresh(kDigestSize, 'f'), other(kDigestSize, 'o');
  guarded.accept({{"a", guarded.key, "*", true}, {"a", fresh, "*", true}, {"b", other, "*", true}});
  const auto opened = [&](Talk& talk, const std::vector<std::string>& keys) {
    const Introduction mine = GuardedRoom::introduction(Purpose::kSession, "run");
    const Digest nonce = GuardedRoom::challenge(talk.ask(mine.bytes()));
    REQUIRE(verdict(talk.ask(*proofs(keys, mine, nonce))) == Verdict::kGoOn);
    return static_cast<int>(talk.ask(wire::framed_greeting() + wire::open(1, 1000, "run"))[8 + 8]);
  };
  Talk old(guarded.room, true), changed(guarded.room, true), both(guarded.room, true), stranger(guarded.room, true);
  CHECK_EQUAL(opened(old, {guarded.key}), 0);
  CHECK_EQUAL(opened(changed, {fresh}), 0);
  CHECK_EQUAL(opened(both, {std::string(kDigestSize, 'u'), guarded.key}), 0);
  CHECK_EQUAL(opened(stranger, {other}), 11);
}

TEST(where_no_token_is_needed_who_offers_one_is_told) {
  Room room;
  Talk talk(room);
  CHECK_EQUAL(talk.ask("\xF8"), verdict_bytes(Verdict::kNoTokenHere));
  CHECK_EQUAL(talk.refusal(), Refusal::kTokenOffered);
}

}  // namespace rdzv::test
