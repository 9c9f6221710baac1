import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import com.rabbitmq.stream.BackOffDelayPolicy;
import com.rabbitmq.stream.Consumer;
import com.rabbitmq.stream.ConsumerBuilder;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.EnvironmentBuilder;
import com.rabbitmq.stream.Message;
import com.rabbitmq.stream.MessageBuilder;
import com.rabbitmq.stream.NoOffsetException;
import com.rabbitmq.stream.OffsetSpecification;
import com.rabbitmq.stream.Producer;
import com.rabbitmq.stream.ProducerBuilder;
import com.rabbitmq.stream.Resource;
import com.rabbitmq.stream.StreamCreator;
import com.rabbitmq.stream.compression.Compression;
import com.rabbitmq.stream.sasl.DefaultSaslConfiguration;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.nio.NioIoHandler;
import io.netty.handler.ssl.SslContextBuilder;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** RabbitMQ's Java client, told what to do by lines of JSON on stdin; interop.py has what may be asked. */
final class Interop {
  private static final Duration PATIENCE = Duration.ofMinutes(2);
  private static final Duration SOON = Duration.ofMillis(100);

  /** One for all environments: each would spend a second on ending its own. */
  private static final EventLoopGroup LOOP =
      new MultiThreadIoEventLoopGroup(NioIoHandler.newFactory());

  private final Map<String, Object> named = new HashMap<>();

  public static void main(String[] arguments) throws Exception {
    PrintStream answers = System.out;
    System.setOut(System.err);
    BufferedReader requests =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    Interop interop = new Interop();
    Gson gson = new Gson();
    for (String line = requests.readLine(); line != null; line = requests.readLine()) {
      Map<String, Object> answer = new LinkedHashMap<>();
      try {
        answer.put("value", interop.answer(gson.fromJson(line, JsonObject.class)));
      } catch (Exception error) {
        answer.put("error", error.toString());
      }
      answers.println(gson.toJson(answer));
    }
    Runtime.getRuntime().halt(0);
  }

  private Object answer(JsonObject asked) throws Exception {
    switch (text(asked, "do")) {
      case "connect":
        return keep(asked, connect(asked));
      case "create":
        creator(asked).stream(text(asked, "stream")).create();
        return null;
      case "create_super_stream":
        return createSuperStream(asked);
      case "delete":
        environment(asked).deleteStream(text(asked, "stream"));
        return null;
      case "delete_super_stream":
        environment(asked).deleteSuperStream(text(asked, "super_stream"));
        return null;
      case "exists":
        return environment(asked).streamExists(text(asked, "stream"));
      case "producer":
        return keep(asked, new Writer(asked));
      case "send":
        return ((Writer) of(asked)).send(asked);
      case "last_id":
        return ((Writer) of(asked)).producer.getLastPublishingId();
      case "consumer":
        return keep(asked, new Reader(asked));
      case "take":
        return ((Reader) of(asked)).messages.take(asked.get("count").getAsInt());
      case "told":
        return ((Told) of(asked)).events().take(asked.get("count").getAsInt());
      case "store":
        environment(asked).storeOffset(
            text(asked, "name"), text(asked, "stream"), asked.get("offset").getAsLong());
        return null;
      case "stored":
        return stored(((Reader) of(asked)).consumer);
      case "close":
        ((AutoCloseable) named.remove(text(asked, "of"))).close();
        return null;
      default:
        throw new IllegalArgumentException("no such request: " + asked);
    }
  }

  private Object keep(JsonObject asked, Object thing) {
    named.put(text(asked, "as"), thing);
    return null;
  }

  private Object of(JsonObject asked) {
    return named.get(text(asked, "of"));
  }

  private Environment environment(JsonObject asked) {
    return (Environment) named.get(text(asked, "on"));
  }

  private static Environment connect(JsonObject asked) throws Exception {
    EnvironmentBuilder builder =
        Environment.builder()
            .uri(text(asked, "url"))
            .netty()
            .eventLoopGroup(LOOP)
            .environmentBuilder()
            .rpcTimeout(PATIENCE)
            .recoveryBackOffDelayPolicy(BackOffDelayPolicy.fixed(SOON))
            .topologyUpdateBackOffDelayPolicy(
                BackOffDelayPolicy.fixedWithInitialDelay(SOON, SOON, SOON.multipliedBy(20)));
    if (asked.has("ca")) {
      SslContextBuilder context =
          SslContextBuilder.forClient().trustManager(new File(text(asked, "ca")));
      if (asked.has("certificate")) {
        context.keyManager(new File(text(asked, "certificate")), new File(text(asked, "key")));
        builder.saslConfiguration(DefaultSaslConfiguration.EXTERNAL);
      }
      builder = builder.tls().sslContext(context.build()).environmentBuilder();
    }
    return builder.build();
  }

  private StreamCreator creator(JsonObject asked) {
    StreamCreator creator = environment(asked).streamCreator();
    if (asked.has("max_age_s")) {
      creator.maxAge(Duration.ofSeconds(asked.get("max_age_s").getAsLong()));
    }
    return creator;
  }

  private Object createSuperStream(JsonObject asked) {
    StreamCreator.SuperStreamConfiguration made =
        creator(asked).name(text(asked, "super_stream")).superStream();
    if (asked.has("keys")) {
      made.bindingKeys(texts(asked, "keys").toArray(new String[0]));
    } else {
      made.partitions(asked.get("partitions").getAsInt());
    }
    made.creator().create();
    return null;
  }

  private static Long stored(Consumer consumer) {
    try {
      return consumer.storedOffset();
    } catch (NoOffsetException none) {
      return null;
    }
  }

  private static OffsetSpecification start(JsonElement from) {
    if (from.isJsonObject()) {
      JsonObject where = from.getAsJsonObject();
      return where.has("offset")
          ? OffsetSpecification.offset(where.get("offset").getAsLong())
          : OffsetSpecification.timestamp(where.get("timestamp").getAsLong());
    }
    switch (from.getAsString()) {
      case "last":
        return OffsetSpecification.last();
      case "next":
        return OffsetSpecification.next();
      default: // "stored" too: a consumer with a name goes on behind what is stored
        return OffsetSpecification.first();
    }
  }

  private static String text(JsonObject asked, String name) {
    return asked.get(name).getAsString();
  }

  private static List<String> texts(JsonObject asked, String name) {
    List<String> found = new ArrayList<>();
    asked.getAsJsonArray(name).forEach(each -> found.add(each.getAsString()));
    return found;
  }

  private static boolean is(JsonObject asked, String name) {
    return asked.has(name) && asked.get(name).getAsBoolean();
  }

  private static String property(Message message, String name) {
    Map<String, Object> properties = message.getApplicationProperties();
    return properties == null ? null : (String) properties.get(name);
  }

  /** What came by itself, in order; `take` waits for as many as are asked for. */
  private static final class Inbox {
    private final List<Object> all = new ArrayList<>();

    synchronized void add(Object thing) {
      all.add(thing);
      notifyAll();
    }

    /** The first `count` of all that ever came, and what is there beyond them. */
    synchronized List<Object> take(int count) throws InterruptedException {
      long deadline = System.nanoTime() + PATIENCE.toNanos();
      while (all.size() < count) {
        long left = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
        if (left <= 0) {
          throw new IllegalStateException("only " + all.size() + " of " + count + ": " + all);
        }
        wait(left);
      }
      return new ArrayList<>(all);
    }
  }

  private interface Told {
    Inbox events();
  }

  private static Resource.StateListener closing(Inbox events) {
    return context -> {
      if (context.currentState() == Resource.State.CLOSED) {
        events.add("closed");
      }
    };
  }

  private final class Writer implements AutoCloseable, Told {
    private final Inbox events = new Inbox();
    private final Producer producer;

    Writer(JsonObject asked) {
      ProducerBuilder builder =
          environment(asked)
              .producerBuilder()
              .confirmTimeout(PATIENCE)
              .enqueueTimeout(PATIENCE)
              .listeners(closing(events));
      if (asked.has("stream")) {
        builder.stream(text(asked, "stream"));
      } else {
        ProducerBuilder.RoutingConfiguration routing =
            builder
                .superStream(text(asked, "super_stream"))
                .routing(message -> property(message, "key"));
        builder =
            (text(asked, "routing").equals("hash") ? routing.hash() : routing.key())
                .producerBuilder();
      }
      if (asked.has("name")) {
        builder.name(text(asked, "name"));
      }
      if (is(asked, "filter")) {
        builder.filterValue(message -> property(message, "filter"));
      }
      if (asked.has("entry_size")) {
        builder.subEntrySize(asked.get("entry_size").getAsInt());
        String name = text(asked, "compression").toUpperCase(Locale.ROOT);
        builder.compression(Compression.valueOf(name));
      }
      producer = builder.build();
    }

    Object send(JsonObject asked) throws InterruptedException {
      int count = asked.getAsJsonArray("messages").size();
      AtomicInteger confirmed = new AtomicInteger();
      Set<Integer> codes = java.util.Collections.synchronizedSet(new TreeSet<>());
      CountDownLatch answered = new CountDownLatch(count);
      for (JsonElement each : asked.getAsJsonArray("messages")) {
        producer.send(
            message(each.getAsJsonObject()),
            status -> {
              if (status.isConfirmed()) {
                confirmed.incrementAndGet();
              } else {
                codes.add((int) status.getCode());
              }
              answered.countDown();
            });
      }
      if (!answered.await(PATIENCE.toSeconds(), TimeUnit.SECONDS)) {
        throw new IllegalStateException(answered.getCount() + " of " + count + " have no answer");
      }
      return Map.of("confirmed", confirmed.get(), "codes", codes);
    }

    private Message message(JsonObject from) {
      MessageBuilder builder = producer.messageBuilder();
      for (String name : List.of("key", "filter")) {
        if (from.has(name)) {
          builder.applicationProperties().entry(name, text(from, name)).messageBuilder();
        }
      }
      if (from.has("id")) {
        builder.publishingId(from.get("id").getAsLong());
      }
      return builder.addData(text(from, "body").getBytes(StandardCharsets.UTF_8)).build();
    }

    @Override
    public Inbox events() {
      return events;
    }

    @Override
    public void close() {
      producer.close();
    }
  }

  private final class Reader implements AutoCloseable, Told {
    private final Inbox events = new Inbox();
    private final Inbox messages = new Inbox();
    private final Consumer consumer;

    Reader(JsonObject asked) {
      ConsumerBuilder builder = environment(asked).consumerBuilder().listeners(closing(events));
      if (asked.has("stream")) {
        builder.stream(text(asked, "stream"));
      } else {
        builder.superStream(text(asked, "super_stream"));
      }
      OffsetSpecification from = start(asked.get("from"));
      builder.offset(from);
      if (asked.has("name")) {
        builder.name(text(asked, "name"));
        if (asked.has("store_every")) {
          builder
              .autoTrackingStrategy()
              .messageCountBeforeStorage(asked.get("store_every").getAsInt());
        } else {
          builder.manualTrackingStrategy();
        }
      } else {
        builder.noTrackingStrategy();
      }
      if (is(asked, "single_active")) {
        builder.singleActiveConsumer().consumerUpdateListener(context -> updated(context, from));
      }
      if (asked.has("filter_values")) {
        List<String> values = texts(asked, "filter_values");
        boolean unfiltered = is(asked, "match_unfiltered");
        builder
            .filter()
            .values(values.toArray(new String[0]))
            .matchUnfiltered(unfiltered)
            .postFilter(
                message -> {
                  String value = property(message, "filter");
                  return value == null ? unfiltered : values.contains(value);
                });
      }
      builder.messageHandler(
          (context, message) ->
              messages.add(
                  List.of(
                      context.stream(),
                      context.offset(),
                      new String(message.getBodyAsBinary(), StandardCharsets.UTF_8))));
      consumer = builder.build();
    }

    /** Goes on behind what is stored, as a program of this client does. */
    private OffsetSpecification updated(
        com.rabbitmq.stream.ConsumerUpdateListener.Context context, OffsetSpecification from) {
      events.add(List.of(context.stream(), context.isActive()));
      if (!context.isActive()) {
        return OffsetSpecification.none();
      }
      Long stored = stored(context.consumer());
      return stored == null ? from : OffsetSpecification.offset(stored + 1);
    }

    @Override
    public Inbox events() {
      return events;
    }

    @Override
    public void close() {
      consumer.close();
    }
  }
}
