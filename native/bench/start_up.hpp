// What the ranks of a job ask of their store when it starts, request by request as torch does.
#pragma once

#include <memory>

#include "workload.hpp"

namespace rdzv::load {

// "enrol": every client adds 1 to torch's own key; "gloo": the full mesh, in gloo's order; "nccl": the first client's
// 128 bytes, which all others read; "store_barrier": torch's BARRIER, `plan.rounds` times. Nothing for another name.
std::unique_ptr<Workload> make_start_up(const Plan& plan);

}  // namespace rdzv::load
