// The Python face of the server. Every call that may block releases the GIL; no loop thread ever runs Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cerrno>
#include <system_error>

#include "rdzv/proxy.hpp"
#include "rdzv/server.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

rdzv::Settings settings(std::uint32_t threads, const std::string& version, int log_fd, nb::handle limits,
                        const std::string& run) {
  const auto number = [&](const char* name) { return nb::cast<std::uint64_t>(limits.attr(name)); };
  const auto milliseconds = [&](const char* name) {  // StoreLimits has checked the range
    return static_cast<std::uint32_t>(nb::cast<double>(limits.attr(name)) * 1e3);
  };
  rdzv::Settings made;
  made.threads = threads;
  made.version = version;
  made.log_fd = log_fd;
  made.run = run;
  made.limits.key_bytes = number("key_bytes");
  made.limits.value_bytes = number("value_bytes");
  made.limits.keys_per_request = number("keys_per_request");
  made.limits.request_bytes = number("request_bytes");
  made.limits.output_bytes = number("output_bytes");
  made.limits.buffered_bytes = number("buffered_bytes");
  made.limits.stored_bytes = number("most_stored");
  made.limits.connections = static_cast<std::uint32_t>(number("connections"));
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

  using rdzv::Server;
  nb::class_<Server>(m, "Server")
      .def(
          "__init__",
          [](Server* self, std::uint32_t threads, const std::string& version, int log_fd, nb::handle limits,
             const std::string& run) {
            new (self) Server(settings(threads, version, log_fd, limits, run));
          },
          "threads"_a, "version"_a, "log_fd"_a, "limits"_a, "run"_a = "")
      .def_prop_ro("threads", &Server::threads)
      .def(
          "open_keyspace",
          [](Server& self, const std::string& name, int socket) {
            Server::Opened opened;
            {
              nb::gil_scoped_release release;
              opened = self.open_keyspace(name, socket);
            }
            return nb::make_tuple(opened.id, opened.port);
          },
          "name"_a, "socket"_a)
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
             bool leaf, std::int64_t grace_ms) {
            rdzv::UniqueFd connection(trunk);
            auto made = settings(1, version, log_fd, limits, "");
            made.limits.stored_bytes = 0;  // the store is somewhere else, where that is judged
            nb::gil_scoped_release release;
            new (self) Proxy(std::move(made), std::move(connection), {name, leaf, grace_ms});
          },
          "version"_a, "log_fd"_a, "limits"_a, "trunk"_a, "name"_a, "leaf"_a, "grace_ms"_a)
      .def("listen", &Proxy::listen, "socket"_a, nb::call_guard<nb::gil_scoped_release>())
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
