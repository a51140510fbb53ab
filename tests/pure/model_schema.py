"""A small schema: inheritance, contained and other navigations, bound operations, and a cycle."""

from typing import Final

EDM: Final = "http://docs.oasis-open.org/odata/ns/edm"
EDMX: Final = "http://docs.oasis-open.org/odata/ns/edmx"


def document(body: str, before: str = "", namespace: str = "sample.mail") -> bytes:
    """Return a CSDL document with one schema that contains `body`."""
    return (
        f'<?xml version="1.0" encoding="utf-8"?>{before}\n'
        f'<edmx:Edmx Version="4.0" xmlns:edmx="{EDMX}"><edmx:DataServices>\n'
        f'<Schema Namespace="{namespace}" Alias="mail" xmlns="{EDM}">\n{body}\n</Schema>\n'
        "</edmx:DataServices></edmx:Edmx>"
    ).encode()


SMALL: Final = document("""
<EnumType Name="importance"><Member Name="low" Value="0"/></EnumType>
<EntityType Name="entity" Abstract="true"><Key><PropertyRef Name="id"/></Key>
  <Property Name="id" Type="Edm.String"/></EntityType>
<EntityType Name="directoryObject" BaseType="mail.entity" OpenType="true">
  <Property Name="deletedDateTime" Type="Edm.DateTimeOffset"/></EntityType>
<EntityType Name="user" BaseType="mail.directoryObject" OpenType="true">
  <Property Name="mobilePhone" Type="Edm.String"/>
  <Property Name="otherMails" Type="Collection(Edm.String)"/>
  <Property Name="settings" Type="mail.mailboxSettings"/>
  <NavigationProperty Name="messages" Type="Collection(mail.message)" ContainsTarget="true">
    <Annotation Term="Org.OData.Capabilities.V1.ExpandRestrictions"><Record>
      <PropertyValue Property="Expandable" Bool="false"/></Record></Annotation></NavigationProperty>
  <NavigationProperty Name="mailFolders" Type="Collection(mail.mailFolder)" ContainsTarget="true"/>
  <NavigationProperty Name="manager" Type="mail.directoryObject"/>
  <NavigationProperty Name="memberOf" Type="Collection(mail.directoryObject)"/>
  <NavigationProperty Name="drive" Type="mail.drive" ContainsTarget="true"/></EntityType>
<EntityType Name="group" BaseType="mail.directoryObject">
  <Property Name="membershipRule" Type="Edm.String"/>
  <NavigationProperty Name="members" Type="Collection(mail.directoryObject)"/></EntityType>
<EntityType Name="outlookItem" BaseType="mail.entity" Abstract="true">
  <Property Name="categories" Type="Collection(Edm.String)"/></EntityType>
<EntityType Name="message" BaseType="mail.outlookItem" OpenType="true">
  <Property Name="subject" Type="Edm.String"/><Property Name="importance" Type="mail.importance"/>
  <NavigationProperty Name="attachments" Type="Collection(mail.attachment)" ContainsTarget="true"/>
</EntityType><EntityType Name="attachment" BaseType="mail.entity" Abstract="true">
  <Property Name="size" Type="Edm.Int32"/></EntityType>
<EntityType Name="fileAttachment" BaseType="mail.attachment" HasStream="true">
  <Property Name="contentBytes" Type="Edm.Binary"/></EntityType>
<EntityType Name="itemAttachment" BaseType="mail.attachment">
  <NavigationProperty Name="item" Type="mail.outlookItem"/></EntityType>
<EntityType Name="mailFolder" BaseType="mail.entity">
  <NavigationProperty Name="childFolders" Type="Collection(mail.mailFolder)" ContainsTarget="true"/>
  <NavigationProperty Name="messages" Type="Collection(mail.message)" ContainsTarget="true"/></EntityType>
<EntityType Name="drive" BaseType="mail.entity">
  <NavigationProperty Name="root" Type="mail.driveItem" ContainsTarget="true"/>
  <NavigationProperty Name="items" Type="Collection(mail.driveItem)" ContainsTarget="true"/></EntityType>
<EntityType Name="driveItem" BaseType="mail.entity" HasStream="true">
  <Property Name="content" Type="Edm.Stream"/>
  <NavigationProperty Name="children" Type="Collection(mail.driveItem)"/></EntityType>
<ComplexType Name="mailboxSettings"><Property Name="timeZone" Type="Edm.String"/>
  <NavigationProperty Name="owner" Type="mail.user"/></ComplexType>
<Function Name="delta" IsBound="true">
  <Parameter Name="bindingParameter" Type="Collection(mail.user)"/>
  <ReturnType Type="Collection(mail.user)"/></Function>
<Function Name="delta" IsBound="true">
  <Parameter Name="bindingParameter" Type="Collection(mail.directoryObject)"/>
  <ReturnType Type="Collection(mail.directoryObject)"/></Function>
<Function Name="reminderView" IsBound="true"><Parameter Name="bindingParameter" Type="mail.user"/>
  <Parameter Name="from" Type="Edm.String"/><ReturnType Type="Collection(mail.message)"/></Function>
<Function Name="any" IsBound="true"><Parameter Name="bindingParameter" Type="mail.message"/>
  <ReturnType Type="mail.message"/></Function>
<Function Name="any" IsBound="true"><Parameter Name="bindingParameter" Type="mail.message"/>
  <Parameter Name="kind" Type="Edm.String"/><ReturnType Type="mail.attachment"/></Function>
<Action Name="send" IsBound="true"><Parameter Name="bindingParameter" Type="mail.message"/></Action>
<Function Name="browse" IsBound="true"><Parameter Name="bindingParameter" Type="mail.drive"/>
  <ReturnType Type="Collection(mail.driveItem)"/></Function>
<Action Name="browse" IsBound="true"><Parameter Name="bindingParameter" Type="mail.drive"/>
  <ReturnType Type="Collection(mail.driveItem)"/></Action>
<Action Name="validate" IsBound="true"><Parameter Name="bindingParameter" Type="Collection(mail.group)"/>
  <ReturnType Type="Edm.Boolean"/></Action>
<Function Name="latest"><ReturnType Type="mail.message"/></Function>
<EntityContainer Name="service"><EntitySet Name="users" EntityType="mail.user"/>
  <EntitySet Name="groups" EntityType="sample.mail.group"/>
  <EntitySet Name="directoryObjects" EntityType="mail.directoryObject"/>
  <Singleton Name="me" Type="mail.user"/></EntityContainer>
<Annotations Target="sample.mail.group/members">
  <Annotation Term="Org.OData.Capabilities.V1.ExpandRestrictions"><Record>
    <PropertyValue Property="Expandable"><Bool>false</Bool></PropertyValue></Record></Annotation>
</Annotations>
""")
