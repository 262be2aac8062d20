// A keyspace as a server, or a proxy, serves it.
#pragma once

#include "rdzv/keyspace.hpp"
#include "rdzv/trunks.hpp"

namespace rdzv {

class ServedKeyspace : public Keyspace {
 public:
  using Keyspace::Keyspace;

  Trunks trunks;
};

}  // namespace rdzv
