// The tokens that a server accepts, as keys that were derived from them: what a token is, is not known here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rdzv {

struct Token {
  std::string name;   // several of one name are one token that is being changed: a run belongs to all of them
  std::string key;    // kDigestSize bytes
  std::string runs;   // a pattern of the run ids that it opens, as a shell's, with * and ?
  bool whole = true;  // also the keys of the server's ports, and its statistics, which are of all runs

  bool opens(std::string_view run) const;
};

using Tokens = std::vector<Token>;

}  // namespace rdzv
