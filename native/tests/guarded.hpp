// A server that needs a token, without sockets, and clients that know it.
#pragma once

#include <string>

#include "rdzv/proof.hpp"
#include "talk.hpp"

namespace rdzv::test {

struct GuardedRoom {
  explicit GuardedRoom(const Limits& limits = Limits()) : room(limits) {
    load_crypto("");
    accept({{"", key, "run", true}});
  }
  void accept(Tokens tokens) { room.server.accepted = std::make_shared<const Tokens>(std::move(tokens)); }

  // What a client says first, with a nonce of its own.
  static Introduction introduction(Purpose purpose, const std::string& run) {
    return {purpose, *fresh_nonce(), run};
  }
  // The nonce in a challenge.
  static Digest challenge(const std::string& heard) {
    Digest nonce{};
    if (heard.size() == kChallengeSize) {
      heard.copy(nonce.data(), nonce.size(), kVerdictSize);
    }
    return nonce;
  }
  // All of the handshake. False: the server has not accepted it, or has not proved that it knows the token.
  bool prove(Talk& talk, Purpose purpose, const std::string& run) const {
    const Introduction mine = introduction(purpose, run);
    const Digest nonce = challenge(talk.ask(mine.bytes()));
    const std::string answer = talk.ask(*proofs({key}, mine, nonce));
    return answer == verdict_bytes(Verdict::kGoOn) + '\0' + std::string(view(*proof(key, Side::kServer, mine, nonce)));
  }

  const std::string key = std::string(kDigestSize, 'k');
  Room room;
};

}  // namespace rdzv::test
