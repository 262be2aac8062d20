// What a client speaks once it has said what that is. A connection carries the state of one protocol alone.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "rdzv/output.hpp"
#include "rdzv/waiter.hpp"

namespace rdzv {

struct Lease;
class Session;

class Protocol {
 public:
  Protocol() = default;
  Protocol(const Protocol&) = delete;
  Protocol& operator=(const Protocol&) = delete;
  virtual ~Protocol() = default;

  // Runs the request or frame at the beginning of `bytes`; returns how many bytes it had. 0: more have to come, or the
  // client is refused, or it has to wait. `wakes`: waiters, of any loop, to be told by the caller.
  virtual std::size_t run(std::string_view bytes, Output& reply, Wakes& wakes) = 0;
  // Runs what has waited here, before anything else.
  virtual void drain(Wakes&) {}
  // A waiter of this client was woken. False: it was cancelled meanwhile, nothing is to be sent.
  virtual bool woken(const Waiter&, Output&) { return false; }
  // What was left for the client since. False: there is nothing.
  virtual bool pushed(Output&) { return false; }
  // When its connection closes; may be repeated. The trunk that is to be kept for its grace, if it is one.
  virtual std::shared_ptr<Trunk> end() { return nullptr; }

  // Null: it may be silent for as long as it likes.
  virtual Lease* lease() { return nullptr; }
  virtual Session* session() const { return nullptr; }
  virtual bool is_trunk() const { return false; }
  // Null: it is none, or its connection has closed.
  virtual Trunk* trunk() const { return nullptr; }
  // Frames that wait here.
  virtual bool has_queued() const { return false; }
  // Memory for an answer that is not complete.
  virtual std::size_t gathered() const { return 0; }
};

}  // namespace rdzv
