// Why a run of the load ended early.
#pragma once

#include <stdexcept>

namespace rdzv::load {

// A wrong reply, a connection that was lost, or a system call that failed.
class LoadError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// One connection was refused, reset or closed.
class ConnectionLost : public LoadError {
 public:
  using LoadError::LoadError;
};

// The run did not end within its limit.
class TimeLimit : public LoadError {
 public:
  using LoadError::LoadError;
};

}  // namespace rdzv::load
