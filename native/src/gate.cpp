#include "rdzv/gate.hpp"

#include <fnmatch.h>

#include "rdzv/framing.hpp"

namespace rdzv {

bool Token::opens(std::string_view run) const {
  // a name with a zero byte would be another one for fnmatch
  return run.find('\0') == std::string_view::npos && fnmatch(runs.c_str(), std::string(run).c_str(), 0) == 0;
}

Gate::Step Gate::run(std::string_view bytes, bool guarded, const Tokens& tokens, Output& reply) {
  return challenged_ ? proved(bytes, tokens, reply) : introduced(bytes, guarded, reply);
}

Gate::Step Gate::introduced(std::string_view bytes, bool guarded, Output& reply) {
  const auto first = static_cast<unsigned char>(bytes[0]);
  if (first == kFramingOpcode) {  // a node of ours without a token: it can be told
    reply.raw(verdict_bytes(Verdict::kTokenNeeded));
    return {0, Refusal::kNoToken};
  }
  if (first == 0) {  // torch's client, which has no word for it
    return {0, Refusal::kNoToken};
  }
  if (!guarded) {
    reply.raw(verdict_bytes(Verdict::kNoTokenHere));
    return {0, Refusal::kTokenOffered};
  }
  const Introduced found = read_introduction(bytes, introduction_);
  if (found.error == Introduced::Error::kNotOne) {
    return {0, Refusal::kNotAClient};
  }
  if (found.error == Introduced::Error::kOtherVersion) {
    reply.raw(verdict_bytes(Verdict::kOtherVersion));
    return {0, Refusal::kNotAClient};
  }
  if (found.size == 0) {
    return {};
  }
  const auto nonce = fresh_nonce();
  if (!nonce) {
    return {0, Refusal::kOutOfMemory};
  }
  nonce_ = *nonce;
  challenged_ = true;
  reply.raw(verdict_bytes(Verdict::kGoOn));
  reply.raw(view(nonce_));
  return {found.size};
}

Gate::Step Gate::proved(std::string_view bytes, const Tokens& tokens, Output& reply) {
  const auto count = static_cast<std::size_t>(static_cast<unsigned char>(bytes[0]));
  if (count == 0 || count > kMostProofs) {
    return {0, Refusal::kWrongToken};
  }
  const std::size_t size = 1 + count * kDigestSize;
  if (bytes.size() < size) {
    return {};
  }
  const bool of_all_runs = introduction_.purpose != Purpose::kSession;
  bool known = false;  // a token that opens something else: so much may be said to who has it
  for (const Token& token : tokens) {
    const auto expected = proof(token.key, Side::kClient, introduction_, nonce_);
    for (std::size_t i = 0; expected && i < count; ++i) {
      if (!same_secret(bytes.substr(1 + i * kDigestSize, kDigestSize), view(*expected))) {
        continue;
      }
      known = true;
      if ((of_all_runs && !token.whole) ||
          (introduction_.purpose != Purpose::kStatus && !token.opens(introduction_.run))) {
        continue;
      }
      const auto mine = proof(token.key, Side::kServer, introduction_, nonce_);
      if (!mine) {
        return {0, Refusal::kOutOfMemory};
      }
      admission_ = Admission{introduction_.purpose, introduction_.run, token.name};
      reply.raw(verdict_bytes(Verdict::kGoOn));
      reply.number(static_cast<std::uint8_t>(i));
      reply.raw(view(*mine));
      return {size};
    }
  }
  reply.raw(verdict_bytes(known ? Verdict::kNotOpened : Verdict::kRefused));
  return {0, Refusal::kWrongToken};
}

}  // namespace rdzv
