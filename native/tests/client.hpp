// A client over a real socket, and a server for it. Whatever takes longer than a generous deadline throws.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "rdzv/server.hpp"
#include "rdzv/unique_fd.hpp"
#include "requests.hpp"

namespace rdzv::test {

// A bound TCP socket. "::" is bound to IPv4 too.
int bound_socket(const char* address = "127.0.0.1", std::uint16_t port = 0);

class Client {
 public:
  Client() = default;
  // Connects. `receive_buffer`: how many bytes the system takes for a client that does not read; 0: its own choice.
  explicit Client(std::uint16_t port, const char* address = "127.0.0.1", int receive_buffer = 0);

  // Sends all of it.
  void say(std::string_view bytes);
  // Sends as much as can be sent without waiting; false: the server has closed.
  bool push(std::string_view& bytes);
  // Exactly so many bytes.
  std::string hear(std::size_t size);
  std::string ask(std::string_view bytes, std::size_t reply_size) {
    say(bytes);
    return hear(reply_size);
  }
  void greet() { say(wire::greeting()); }
  // Reads on until the server closes; false: it has not, for the length of the deadline.
  bool sees_close();
  // The same; how many bytes came before.
  std::size_t read_to_end();
  // Closes with a reset instead of a farewell.
  void reset();
  void leave() { fd_.reset(); }
  int fd() const { return fd_.get(); }

 private:
  void wait_for(short events);

  UniqueFd fd_;
};

// Whether a connection to this port is possible.
bool can_connect(std::uint16_t port);

// Asks again and again; false: it did not come true.
bool eventually(const std::function<bool()>& condition);

// A server with a first keyspace, which is named "first".
class Host {
 public:
  explicit Host(std::uint32_t threads = 2, const Limits& limits = Limits());
  ~Host();

  std::uint16_t port() const { return first_.port; }
  Server& server() { return *server_; }
  Server::Opened first() const { return first_; }
  Server::Opened open(const std::string& name) { return server_->open_keyspace(name, bound_socket()); }
  // A client that has been greeted.
  Client client() { return client(port()); }
  Client client(std::uint16_t port);
  // A figure of the statistics: ("connections", "open").
  std::int64_t figure(const std::string& object, const std::string& name);
  std::int64_t refused(const std::string& reason) { return figure("refused", reason); }
  // What was logged since the last call.
  std::string log();
  void end() { server_.reset(); }

 private:
  UniqueFd log_;
  std::unique_ptr<Server> server_;
  Server::Opened first_;
};

}  // namespace rdzv::test
