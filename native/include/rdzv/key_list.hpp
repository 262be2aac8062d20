// The keys of a keyspace as one client asks for them: gathered in slices, so that others have their turns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rdzv/output.hpp"

namespace rdzv {

class KeyList {
 public:
  void add(std::string_view key) {
    if (pieces_.empty() || pieces_.back().size() + key.size() > kPiece) {
      pieces_.emplace_back().reserve(kPiece);
    }
    const std::uint64_t size = key.size();
    pieces_.back().append(reinterpret_cast<const char*>(&size), sizeof size).append(key);
    bytes_ += sizeof size + key.size();
    ++count_;
  }
  // As LIST_KEYS is answered. It is empty then.
  void finish(Output& reply) {
    reply.number<std::int64_t>(count_);
    for (std::string& piece : pieces_) {
      reply.own(std::move(piece));
    }
    *this = {};
  }
  std::size_t bytes() const { return bytes_; }

  // Where the next slice begins; kept by the keyspace.
  std::size_t shard = 0;
  std::uint64_t place = 0;
  std::uint64_t wiped = 0;

 private:
  static constexpr std::size_t kPiece = 256 << 10;

  std::vector<std::string> pieces_;
  std::size_t bytes_ = 0;
  std::int64_t count_ = 0;
};

}  // namespace rdzv
