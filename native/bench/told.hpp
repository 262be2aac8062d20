// What the leader of a run tells its nodes, read from JSON as Python's json module writes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rdzv::load {

// A place in a round, or why there is none.
struct Assignment {
  std::int64_t round = 0;
  std::int64_t rank = -1;
  std::int64_t world = 0;
  std::int64_t master_port = 0;
  std::string master_addr;  // empty: this node is to serve the workers' store
  std::string node_id;
  std::string without;      // why the node has no place
};

// The newest round that was declared.
struct Round {
  std::int64_t number = 0;
  std::int64_t world = 0;
  std::string state;

  bool complete() const { return state == "complete"; }
  bool over() const { return state == "over"; }
};

// Both throw LoadError for anything that is not a flat object, or whose field is of another kind than it is here.
// Fields that a simulated node has no use for are left out.
Assignment read_assignment(std::string_view json);
Round read_round(std::string_view json);

}  // namespace rdzv::load
