// Stands before everything else on a connection that needs a token: says nothing of the server to who has not proved that
// it knows one, and proves in turn that the server does. Knows no sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rdzv/output.hpp"
#include "rdzv/proof.hpp"
#include "rdzv/limits.hpp"

namespace rdzv {

// The tokens that a server accepts, as keys that were derived from them: what a token is, is not known here.
struct Token {
  std::string name;   // several of one name are one token that is being changed: a run belongs to all of them
  std::string key;    // kDigestSize bytes
  std::string runs;   // a pattern of the run ids that it opens, as a shell's, with * and ?
  bool whole = true;  // also the keys of the server's ports, and its statistics, which are of all runs

  bool opens(std::string_view run) const;
};

using Tokens = std::vector<Token>;

class Gate {
 public:
  // What the client has proved, and is served: nothing else.
  struct Admission {
    Purpose purpose;
    std::string run;
    std::string owner;  // the name of the token
  };

  struct Step {
    std::size_t used = 0;  // 0: more bytes have to come, or it is refused
    Refusal refusal = Refusal::kNone;
  };
  // What is at the beginning of `bytes`, which are not empty. Not `guarded`, no token is needed here: then whoever offers
  // one is told so with its first byte, since it would take this for the server that it looks for.
  Step run(std::string_view bytes, bool guarded, const Tokens& tokens, Output& reply);

  // Whether `first` is for the gate.
  bool takes(unsigned char first, bool guarded) const {
    return guarded ? !admission_ : first == kProofOpcode;
  }
  const std::optional<Admission>& admission() const { return admission_; }

 private:
  Step introduced(std::string_view bytes, bool guarded, Output& reply);
  Step proved(std::string_view bytes, const Tokens& tokens, Output& reply);

  bool challenged_ = false;
  Introduction introduction_;
  Digest nonce_{};  // the server's, of this connection alone
  std::optional<Admission> admission_;
};

}  // namespace rdzv
