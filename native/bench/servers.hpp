// What stands at the other end of a load: the floor of the comparison, and a way to a server that takes time.
#pragma once

#include <string>

namespace rdzv::load {

// Serves connections of the listening socket `listener` until the process ends: a bare epoll loop that answers messages
// of given sizes and does nothing else. A message starts with two u32: its whole length and the length of the reply
// that it asks for (0: none). Once a message is complete, that many zero bytes are sent. One thread, level-triggered,
// one recv for each readiness, one send for each reply. Throws LoadError when epoll fails.
[[noreturn]] void serve_echo(int listener);

// Accepts on the listening socket `listener` and passes everything on to `place` (see parse_place) after `delay_s`, and
// what comes back as well, any amount of it; ends of connections take the same time, coming about takes none. Until the
// process ends, on the calling thread. Throws LoadError.
[[noreturn]] void serve_delayed(int listener, const std::string& place, double delay_s);

}  // namespace rdzv::load
