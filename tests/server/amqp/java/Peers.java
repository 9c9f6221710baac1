import com.google.gson.Gson;
import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.activemq.artemis.api.core.RoutingType;
import org.apache.activemq.artemis.core.config.impl.ConfigurationImpl;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;
import org.apache.activemq.artemis.core.settings.impl.AddressSettings;
import org.apache.qpid.jms.JmsConnectionFactory;

/** Qpid's JMS client and an Artemis, told what to do by lines of JSON on stdin; test_foreign_peers.py asks. */
final class Peers {
  private static final long WAIT_MS = 120_000;

  private final Map<String, Object> named = new HashMap<>();

  public static void main(String[] arguments) throws Exception {
    PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    System.setOut(System.err);
    BufferedReader requests =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    Peers peers = new Peers();
    Gson gson = new Gson();
    for (String line = requests.readLine(); line != null; line = requests.readLine()) {
      Map<String, Object> answer = new LinkedHashMap<>();
      try {
        answer.put("value", peers.answer(gson.fromJson(line, Map.class)));
      } catch (Exception error) {
        answer.put("error", error.toString());
      }
      answers.println(gson.toJson(answer));
    }
    Runtime.getRuntime().halt(0);
  }

  @SuppressWarnings("unchecked")
  private Object answer(Map<String, Object> asked) throws Exception {
    String address = (String) asked.get("address");
    Session session = (Session) named.get(asked.get("on"));
    switch ((String) asked.get("do")) {
      case "connect":
        Connection connection =
            new JmsConnectionFactory("guest", "guest", (String) asked.get("url")).createConnection();
        connection.start();
        named.put("connection", connection);
        boolean transacted = Boolean.TRUE.equals(asked.get("transacted"));
        int mode = transacted ? Session.SESSION_TRANSACTED : Session.AUTO_ACKNOWLEDGE;
        named.put((String) asked.get("as"), connection.createSession(transacted, mode));
        return null;
      case "publish":
        MessageProducer producer = session.createProducer(session.createQueue(address));
        for (String body : (List<String>) asked.get("bodies")) {
          BytesMessage message = session.createBytesMessage();
          message.writeBytes(body.getBytes(StandardCharsets.UTF_8));
          producer.send(message);
        }
        producer.close();
        return null;
      case "consumer":
        named.put(
            (String) asked.get("as"), session.createConsumer(session.createQueue(address)));
        return null;
      case "take":
        MessageConsumer consumer = (MessageConsumer) named.get(asked.get("of"));
        List<String> bodies = new ArrayList<>();
        for (int left = ((Double) asked.get("count")).intValue(); left > 0; left--) {
          Message message = consumer.receive(WAIT_MS);
          bodies.add(message == null ? null : new String(message.getBody(byte[].class), "UTF-8"));
        }
        return bodies;
      case "close":
        ((Connection) named.get("connection")).close();
        return null;
      case "broker":
        named.put("broker", started((String) asked.get("acceptor")));
        return null;
      default:
        throw new IllegalArgumentException("what is " + asked.get("do") + "?");
    }
  }

  private static EmbeddedActiveMQ started(String acceptor) throws Exception {
    ConfigurationImpl configuration = new ConfigurationImpl();
    configuration.setPersistenceEnabled(false);
    configuration.setSecurityEnabled(false);
    configuration.addAcceptorConfiguration("amqp", acceptor);
    configuration.addAddressSetting(
        "#",
        new AddressSettings()
            .setDefaultAddressRoutingType(RoutingType.ANYCAST)
            .setDefaultQueueRoutingType(RoutingType.ANYCAST));
    EmbeddedActiveMQ broker = new EmbeddedActiveMQ();
    broker.setConfiguration(configuration);
    broker.start();
    return broker;
  }
}
