// Makes inputs for the fuzzer: programs of requests that are mostly valid, and changes to inputs that were interesting.
#pragma once

#include <string>
#include <vector>

#include "events.hpp"
#include "random.hpp"

namespace rdzv::fuzz {

class Generator {
 public:
  explicit Generator(std::uint64_t seed) : random_(seed) {}

  // One of each query, alone and after each other: the corpus to begin with.
  std::vector<std::string> seeds();
  std::string fresh();
  std::string mutated(const std::vector<std::string>& corpus);

 private:
  std::string key();
  std::string value();
  std::uint64_t odd_number();
  std::string request(std::size_t type);
  std::string frame();
  std::string coordination();  // a frame of it
  std::string introduction();
  std::string greeting();
  // What a client says until it leaves, in pieces.
  std::vector<Event> speech(std::size_t client, std::size_t requests);
  std::vector<Event> cut(std::size_t client, const std::string& said);
  void mutate_bytes(std::string& bytes);
  void mutate_events(std::vector<Event>& events, const std::vector<std::string>& corpus);

  test::Random random_;
};

}  // namespace rdzv::fuzz
