// The Python face of the server. Every call that may block releases the GIL; no loop thread ever runs Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "rdzv/proof.hpp"
#include "rdzv/server.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

std::string bytes_of(nb::handle text) {
  const auto bytes = nb::cast<nb::bytes>(text);
  return {bytes.c_str(), bytes.size()};
}

// From objects that are as Python's AcceptedToken.
rdzv::Tokens tokens_of(nb::handle all) {
  rdzv::Tokens tokens;
  for (nb::handle each : all) {
    tokens.push_back({nb::cast<std::string>(each.attr("name")), bytes_of(each.attr("key")),
                      nb::cast<std::string>(each.attr("runs")), nb::cast<bool>(each.attr("whole"))});
  }
  return tokens;
}

rdzv::Admit admit_of(std::string_view who) {
  if (who == "token") {
    return rdzv::Admit::kToken;
  }
  if (who == "user") {
    return rdzv::Admit::kOwnUser;
  }
  if (who == "anyone") {
    return rdzv::Admit::kAnyone;
  }
  throw std::invalid_argument("admit is none of anyone, user and token");
}

// From the texts of cacert, cert and key, as bytes.
rdzv::Certificates certificates_of(nb::handle texts) {
  return {bytes_of(texts[nb::int_(0)]), bytes_of(texts[nb::int_(1)]), bytes_of(texts[nb::int_(2)])};
}

std::shared_ptr<rdzv::TlsIdentity> identity_of(nb::handle texts) {
  return texts.is_none() ? nullptr : std::make_shared<rdzv::TlsIdentity>(certificates_of(texts));
}

rdzv::Settings settings(std::uint32_t threads, const std::string& version, int log_fd, nb::handle limits,
                        const std::string& run, nb::handle tokens, nb::handle tls) {
  const auto number = [&](const char* name) { return nb::cast<std::uint64_t>(limits.attr(name)); };
  const auto small = [&](const char* name) { return static_cast<std::uint32_t>(number(name)); };
  const auto milliseconds = [&](const char* name) {  // StoreLimits has checked the range
    return static_cast<std::uint32_t>(nb::cast<double>(limits.attr(name)) * 1e3);
  };
  rdzv::Settings made;
  made.threads = threads;
  made.version = version;
  made.log_fd = log_fd;
  made.run = run;
  made.tokens = tokens_of(tokens);
  made.tls = identity_of(tls);
  made.limits.key_bytes = number("key_bytes");
  made.limits.value_bytes = number("value_bytes");
  made.limits.keys_per_request = number("keys_per_request");
  made.limits.request_bytes = number("request_bytes");
  made.limits.output_bytes = number("output_bytes");
  made.limits.buffered_bytes = number("buffered_bytes");
  made.limits.stored_bytes = number("most_stored");
  made.limits.stored_keys = number("stored_keys");
  made.limits.run_bytes = number("run_bytes");
  made.limits.run_keys = number("run_keys");
  made.limits.sessions = small("sessions");
  made.limits.run_sessions = small("run_sessions");
  made.limits.watches = small("watches");
  made.limits.run_watches = small("run_watches");
  made.limits.connections = small("connections");
  made.limits.pending_connections = small("pending_connections");
  made.limits.pending_per_address = small("pending_per_address");
  made.limits.handshake_bytes = number("handshake_bytes");
  made.limits.handshake_ms = milliseconds("handshake_seconds");
  made.limits.stall_ms = milliseconds("stall_seconds");
  return made;
}

}  // namespace

NB_MODULE(_native, m) {
  // A server that lives until the process ends is not a leak.
  nb::set_leak_warnings(false);

  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const std::system_error& error) {
      errno = error.code().value();
      PyErr_SetFromErrno(PyExc_OSError);
    }
  });

  m.def("load_crypto", &rdzv::load_crypto, "library"_a);  // raises RuntimeError
  m.def("load_tls", &rdzv::load_tls, "library"_a);        // the same

  using rdzv::Server;
  nb::class_<Server>(m, "Server")
      .def(
          "__init__",
          [](Server* self, std::uint32_t threads, const std::string& version, int log_fd, nb::handle limits,
             const std::string& run, nb::handle tokens, nb::handle tls) {
            new (self) Server(settings(threads, version, log_fd, limits, run, tokens, tls));
          },
          "threads"_a, "version"_a, "log_fd"_a, "limits"_a, "run"_a = "", "tokens"_a = nb::make_tuple(),
          "tls"_a = nb::none())
      .def_prop_ro("threads", &Server::threads)
      .def(
          "open_keyspace",
          [](Server& self, const std::string& name, int socket, std::string_view admit, bool under_tls) {
            Server::Opened opened;
            {
              nb::gil_scoped_release release;
              opened = self.open_keyspace(name, socket, admit_of(admit), under_tls);
            }
            return nb::make_tuple(opened.id, opened.port);
          },
          "name"_a, "socket"_a, "admit"_a = "anyone", "under_tls"_a = false)
      .def("accept_tokens", [](Server& self, nb::handle tokens) { self.accept_tokens(tokens_of(tokens)); }, "tokens"_a)
      .def("renew", [](Server& self, nb::handle tls) { self.renew(certificates_of(tls)); }, "tls"_a)
      .def("close_keyspace", &Server::close_keyspace, "id"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("wipe_keyspace", &Server::wipe_keyspace, "id"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("pause_after", &Server::pause_after, "id"_a, "ms"_a)
      .def("pauses", &Server::pauses, "id"_a)
      .def("paused", &Server::paused, "id"_a)
      .def("resume", &Server::resume, "id"_a, "pause"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "statistics",
          [](Server& self) {
            std::string json;
            {
              nb::gil_scoped_release release;
              json = self.statistics();
            }
            return nb::bytes(json.data(), json.size());
          })
      .def("stop", &Server::stop, nb::call_guard<nb::gil_scoped_release>());

  using rdzv::Proxy;
  nb::class_<Proxy>(m, "Proxy")
      .def(
          "__init__",
          [](Proxy* self, const std::string& version, int log_fd, nb::handle limits, int trunk, const std::string& name,
             bool leaf, std::int64_t grace_ms, nb::handle tokens, nb::handle keys, const std::string& run,
             nb::handle tls, const std::string& host) {
            rdzv::UniqueFd connection(trunk);
            auto made = settings(1, version, log_fd, limits, "", tokens, tls);
            made.limits.stored_bytes = made.limits.stored_keys = 0;  // the store is somewhere else, where that is judged
            rdzv::Upstream::Traits traits{name, leaf, grace_ms, {}, run, made.tls, host};
            for (nb::handle key : keys) {
              traits.keys.push_back(bytes_of(key));
            }
            nb::gil_scoped_release release;
            new (self) Proxy(std::move(made), std::move(connection), std::move(traits));
          },
          "version"_a, "log_fd"_a, "limits"_a, "trunk"_a, "name"_a, "leaf"_a, "grace_ms"_a, "tokens"_a = nb::make_tuple(),
          "keys"_a = nb::make_tuple(), "run"_a = "", "tls"_a = nb::none(), "host"_a = "")
      .def(
          "listen",
          [](Proxy& self, int socket, std::string_view admit, bool under_tls) {
            return self.listen(socket, admit_of(admit), under_tls);
          },
          "socket"_a, "admit"_a = "anyone", "under_tls"_a = false, nb::call_guard<nb::gil_scoped_release>())
      .def("renew", [](Proxy& self, nb::handle tls) { self.renew(certificates_of(tls)); }, "tls"_a)
      .def("statistics",
           [](Proxy& self) {
             std::string json;
             {
               nb::gil_scoped_release release;
               json = self.statistics();
             }
             return nb::bytes(json.data(), json.size());
           })
      .def("stop", [](Proxy& self) { self.stop(); }, nb::call_guard<nb::gil_scoped_release>());
}
