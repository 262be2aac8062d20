// The floor of the comparison: a bare epoll server that answers messages of given sizes and does nothing else.
//
// A message starts with two u32: its whole length and the length of the reply that it asks for (0: none). Once a
// message is complete, that many zero bytes are sent. One thread, level-triggered, one recv for each readiness, one
// send for each reply.
#pragma once

namespace rdzv::load {

// Serves connections of the listening socket `listener` until the process ends; never returns.
// Throws LoadError when epoll fails.
[[noreturn]] void serve_echo(int listener);

}  // namespace rdzv::load
