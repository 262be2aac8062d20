// What one event loop has counted. Written by its thread alone, read by any.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "rdzv/framing.hpp"
#include "rdzv/query.hpp"
#include "rdzv/refusal.hpp"

namespace rdzv {

class Count {
 public:
  // By the one writer only: no read-modify-write that other cores would have to wait for.
  void add(std::uint64_t more) { value_.store(value_.load(std::memory_order_relaxed) + more, std::memory_order_relaxed); }
  void set(std::uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

struct Counters {
  std::array<Count, kQueryCount> requests;
  Count frames;
  std::array<Count, kCoordination.size()> coordination;
  std::array<Count, kTrunkNames.size()> trunk;
  Count pushes, events;  // frames that were pushed, and the changes in them
  std::array<Count, kRefusals.size()> refused;
  Count accepted, closed;
  Count received, sent;  // bytes
  Count turns, busy_ns, wakes;
  Count stalled_ms;  // for which it did not run though it would have
};

}  // namespace rdzv
