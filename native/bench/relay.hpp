// A way to a server that takes time, but lets any amount through.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace rdzv::load {

// Accepts on the descriptor of a listening socket and passes everything on to `host`:`port` after `delay_s`, and what
// comes back as well; ends of connections take the same time, coming about takes none. Runs on the calling thread until
// `check` (see Poller) throws. Throws LoadError.
[[noreturn]] void serve_delayed(int listener, const std::string& host, std::uint16_t port, double delay_s,
                                std::function<void()> check);

}  // namespace rdzv::load
