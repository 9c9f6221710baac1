import com.google.gson.FieldNamingPolicy;
import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.rabbitmq.stream.BackOffDelayPolicy;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.EnvironmentBuilder;
import com.rabbitmq.stream.StreamCreator;
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
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;

/** RabbitMQ's Java client, told what to do by lines of JSON on stdin; interop.py has what may be asked. */
final class Interop {
  private static final Duration SOON = Duration.ofMillis(100);

  /** One for all environments: each would spend a second on ending its own. */
  private static final EventLoopGroup LOOP =
      new MultiThreadIoEventLoopGroup(NioIoHandler.newFactory());

  private final Map<String, Object> named = new HashMap<>();

  public static void main(String[] arguments) throws Exception {
    PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    System.setOut(System.err);
    BufferedReader requests =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    Interop interop = new Interop();
    Gson gson =
        new GsonBuilder()
            .setFieldNamingPolicy(FieldNamingPolicy.LOWER_CASE_WITH_UNDERSCORES)
            .create();
    for (String line = requests.readLine(); line != null; line = requests.readLine()) {
      Map<String, Object> answer = new LinkedHashMap<>();
      try {
        answer.put("value", interop.answer(gson.fromJson(line, Asked.class)));
      } catch (Exception error) {
        answer.put("error", error.toString());
      }
      answers.println(gson.toJson(answer));
    }
    Runtime.getRuntime().halt(0);
  }

  private Object answer(Asked asked) throws Exception {
    Environment environment = (Environment) named.get(asked.on);
    Object thing = named.get(asked.of);
    switch (asked.action) {
      case "connect":
        return keep(asked, connect(asked));
      case "create":
        creator(environment, asked).stream(asked.stream).create();
        return null;
      case "create_super_stream":
        return createSuperStream(environment, asked);
      case "delete":
        environment.deleteStream(asked.stream);
        return null;
      case "delete_super_stream":
        environment.deleteSuperStream(asked.superStream);
        return null;
      case "exists":
        return environment.streamExists(asked.stream);
      case "producer":
        return keep(asked, new Writer(environment, asked));
      case "send":
        return ((Writer) thing).send(asked);
      case "last_id":
        return ((Writer) thing).producer.getLastPublishingId();
      case "consumer":
        return keep(asked, new Reader(environment, asked));
      case "take":
        return ((Reader) thing).messages.take(asked.count);
      case "told":
        return (thing instanceof Writer ? ((Writer) thing).events : ((Reader) thing).events)
            .take(asked.count);
      case "store":
        environment.storeOffset(asked.name, asked.stream, asked.offset);
        return null;
      case "stored":
        return Reader.stored(((Reader) thing).consumer);
      case "close":
        ((AutoCloseable) named.remove(asked.of)).close();
        return null;
      default:
        throw new IllegalArgumentException("no such request: " + asked.action);
    }
  }

  private Object keep(Asked asked, Object thing) {
    named.put(asked.as, thing);
    return null;
  }

  private static Environment connect(Asked asked) throws Exception {
    EnvironmentBuilder builder =
        Environment.builder()
            .uri(asked.url)
            .netty()
            .eventLoopGroup(LOOP)
            .environmentBuilder()
            .rpcTimeout(Inbox.PATIENCE)
            .recoveryBackOffDelayPolicy(BackOffDelayPolicy.fixed(SOON))
            .topologyUpdateBackOffDelayPolicy(
                BackOffDelayPolicy.fixedWithInitialDelay(SOON, SOON, SOON.multipliedBy(20)));
    if (asked.ca != null) {
      SslContextBuilder context = SslContextBuilder.forClient().trustManager(new File(asked.ca));
      if (asked.certificate != null) {
        context.keyManager(new File(asked.certificate), new File(asked.key));
        builder.saslConfiguration(DefaultSaslConfiguration.EXTERNAL);
      }
      builder = builder.tls().sslContext(context.build()).environmentBuilder();
    }
    return builder.build();
  }

  private static StreamCreator creator(Environment environment, Asked asked) {
    StreamCreator creator = environment.streamCreator();
    return asked.maxAgeS == 0 ? creator : creator.maxAge(Duration.ofSeconds(asked.maxAgeS));
  }

  private static Object createSuperStream(Environment environment, Asked asked) {
    StreamCreator.SuperStreamConfiguration made =
        creator(environment, asked).name(asked.superStream).superStream();
    if (asked.keys == null) {
      made.partitions(asked.partitions);
    } else {
      made.bindingKeys(asked.keys.toArray(new String[0]));
    }
    made.creator().create();
    return null;
  }
}
